// The one-line exercises of the book's pages: right answers pass, mistakes get their sentences, and
// no text breaks the judge.
//   node tests/book_try.mjs
import { createRequire } from 'node:module';

const { judge, EXERCISES } = createRequire(import.meta.url)('../book/page/try.js');
let count = 0, failures = 0;

function check(claim, holds, found) {
    count++;
    if (!holds) {
        failures++;
        console.log(`${claim}: ${JSON.stringify(found)}`);
    }
}
// Of the exercise softmax: text is wrong, and the sentence begins so.
function wrong(text, beginning) {
    const result = judge('softmax', text);
    const shown = text.length > 200 ? `${text.length} characters` : `"${text}"`;
    check(`${shown} gets: ${beginning}`,
          !result.right && result.sentence.startsWith(beginning), result.sentence);
}
function right(name, text) {
    const result = judge(name, text);
    check(`${name}: "${text}" is right`, result.right, result.sentence);
}

for (const [name, { right: answers, mistakes }] of Object.entries(EXERCISES)) {
    check(`${name} has two spellings of the answer`, new Set(answers).size >= 2, answers);
    for (const text of answers)
        right(name, text);
    for (const [text, sentence] of mistakes) {
        const result = judge(name, text);
        check(`${name}: "${text}" gets: ${sentence}`,
              !result.right && result.sentence === sentence, result.sentence);
        check(`${name}: "${text}" has numbers beside those expected`,
              result.mine?.length === result.expected?.length, result);
    }
    const sentences = mistakes.map(([, sentence]) => sentence);
    check(`${name}: no sentence has two mistakes`,
          new Set(sentences).size === sentences.length, sentences);
}

// The language: spaces, order of operations, functions, signs of a keyboard on a phone.
right('softmax', '  p * ( g-sum( p*g ) )  ');
right('softmax', 'p × (g − sum(p · g))');
right('softmax', '((p))*g-p*sum(p*g)');
right('softmax', 'p*g + -p*sum(p*g)');
right('softmax', 'p*g - --p*sum(p*g)');
right('softmax', 'exp(x)/sum(exp(x)) * (g - sum(p*g))');
right('softmax', 'exp(log(p))*g - exp(ln(p))*sum(g*p)');
right('softmax', '2^-1*p*4^.5*(g - sum(p*g))');
right('softmax', 'p*(g - sum(p*g)) + (-2^2 + 4)*x');
right('softmax', 'p*(g - sum(p*g)) + (2^3^2 - 512)*x');
right('softmax', 'p*(g - sum(p*g)) + (8/4/2 - 1)*x + (5 - 3 - 2)*g');
right('softmax', 'p*(g - sum(p*g))*sqrt(tanh(max(x) - max(x)) + 1.)');
right('softmax', 'p*(g - sum(p*g))/mean(x^0)');
right('product', 'g*y*(1 + 1/x)');
right('cross_entropy', '-(y - p)/N');
right('cross_entropy', '(exp(x)/sum(exp(x)) - y)/N');

// Errors name the place.
wrong('', 'The line is empty');
wrong('  \t ', 'The line is empty');
wrong('p*q', 'At "q", column 3: there is no q, only p, g, x and the functions sum,');
wrong('p*(g - sum(p*g)', 'At the end of the line: expected ).');
wrong('p*(g - sum(p*g)))', 'At ")", column 17: this bracket was not opened');
wrong('p (g)', 'At "(", column 3: expected an operator');
wrong('2p', 'At "p", column 2: expected an operator');
wrong('p*', 'At the end of the line: expected a name');
wrong('p**g', 'At "*", column 3: expected a name');
wrong('*p', 'At "*", column 1: expected a name');
wrong('sum p*g', 'At "p", column 5: sum of what? Write sum(...)');
wrong('sum(p, g)', 'At ",", column 6: expected )');
wrong('()', 'At ")", column 2: expected a name');
wrong('.', 'At ".", column 1: expected a name');
wrong('1.2.3*p', 'At ".3", column 4: expected an operator');
wrong('dx = p', 'At "dx", column 1: there is no dx');
wrong('P*g', 'At "P", column 1: there is no P');
wrong('p; process.exit()', 'At ";", column 2: expected an operator');
wrong('p + 🙂', 'At "🙂", column 5: expected a name');
wrong('p\n*\nq', 'At "q", column 5: there is no q');

// Names that JavaScript's objects have are no names here.
for (const name of ['constructor', 'toString', 'valueOf', '__proto__', 'hasOwnProperty', 'this',
                    'get', 'size', 'Math', 'Infinity', 'NaN']) {
    wrong(name, `At "${name}", column 1: there is no ${name}`);
    wrong(`${name}(p)`, `At "${name}", column 1: there is no ${name}`);
    wrong(`p.${name}`, 'At ".", column 2: expected an operator');
}

// Results that are no vector of numbers.
wrong('sum(p*g)', 'This is one number');
wrong('1', 'This is one number');
wrong('9^9^9^9', 'This is one number');
wrong('p/0', 'Some elements are infinite or NaN');
wrong('log(-p)', 'Some elements are infinite or NaN');
wrong('p/p - p/p', 'Not right, and none of the usual mistakes');

// Long texts. A string of 1e9 brackets does not exist: V8's have at most 2^29 - 24 characters.
wrong('('.repeat(200), 'At the end of the line');
wrong('-'.repeat(200), 'At the end of the line');
wrong('exp('.repeat(39) + 'p' + ')'.repeat(39), 'Some elements are infinite');
for (const length of [201, 1e5, 2 ** 29 - 24]) {
    wrong('('.repeat(length), 'The line is longer than 200 characters');
    wrong(' '.repeat(length), 'The line is longer than 200 characters');
}

console.log(`${count} checks, ${failures} failed`);
process.exit(failures ? 1 : 0);
