// Exercises of one line. A page has places for them:
//     <div class="try" data-exercise="softmax"></div>
// The learner types dx as a formula of vectors: p*(g - sum(p*g)). Central differences judge it. The
// usual mistakes are formulas of the same language, each with its sentence. In node this file
// exports { judge, EXERCISES } for tests/book_try.mjs. It is one block, so that pictures, which
// follow it in the same script, may use the same names.
'use strict';
{
    // ---------------------------------------------------------------------- vectors and numbers
    // A value is a number or an array of numbers. An operation on two arrays combines their
    // elements in pairs; an operation on an array and a number, the number with every element.

    const elements = value => Array.isArray(value) ? value : [value];
    const map = (value, f) => Array.isArray(value) ? value.map(a => f(a)) : f(value);

    function combine(a, b, f) {
        if (Array.isArray(a))
            return a.map((element, i) => f(element, Array.isArray(b) ? b[i] : b));
        return map(b, element => f(a, element));
    }

    const sum = value => elements(value).reduce((total, a) => total + a, 0);
    const mean = value => sum(value) / elements(value).length;
    const max = value => Math.max(...elements(value));
    const exp = value => map(value, Math.exp);
    const log = value => map(value, Math.log);
    const sqrt = value => map(value, Math.sqrt);
    const tanh = value => map(value, Math.tanh);
    const add = (a, b) => combine(a, b, (c, d) => c + d);
    const subtract = (a, b) => combine(a, b, (c, d) => c - d);
    const multiply = (a, b) => combine(a, b, (c, d) => c * d);
    const divide = (a, b) => combine(a, b, (c, d) => c / d);
    const power = (a, b) => combine(a, b, (c, d) => c ** d);

    // Maps, not objects: an object also has the names `constructor` and `toString`.
    const FUNCTIONS = new Map(Object.entries({ sum, mean, max, exp, log, ln: log, sqrt, tanh }));
    const FUNCTION_NAMES = [...FUNCTIONS.keys()].join(', ');
    const SUMS = new Map([['+', add], ['-', subtract]]);
    const PRODUCTS = new Map([['*', multiply], ['/', divide]]);

    // ------------------------------------------------------------------------------ the language
    // sum = product {("+" | "-") product}           product = signed {("*" | "/") signed}
    // signed = "-" signed | power                   power = atom ["^" signed]
    // atom = number | name | function "(" sum ")" | "(" sum ")"

    const MAX_LENGTH = 200; // it also bounds nested brackets, for which the parser recurses
    const TOKEN = /\s*(\d+\.?\d*|\.\d+|[A-Za-z_]\w*|\S)/gu;
    const SPELLINGS = new Map([['−', '-'], ['·', '*'], ['×', '*']]);

    function tokens_of(text) {
        return [...text.matchAll(TOKEN)].map(match => ({
            text: SPELLINGS.get(match[1]) ?? match[1],
            column: match.index + match[0].length - match[1].length + 1,
        }));
    }

    // sum, product, ... read a part of the text and return a function: from the values of the
    // names, a Map, to the value of that part.
    class Parser {
        constructor(text, names) {
            this.tokens = tokens_of(text);
            this.names = names;
            this.at = 0;
        }
        next() {
            return this.tokens[this.at]?.text ?? '';
        }
        fail(expectation) {
            const token = this.tokens[this.at];
            const place = token ? `At "${token.text}", column ${token.column}`
                : 'At the end of the line';
            throw Error(`${place}: ${expectation}.`);
        }
        skip(symbol) {
            if (this.next() !== symbol)
                this.fail(`expected ${symbol}`);
            this.at++;
        }
        // operand {operator operand}, from left to right
        chain(operators, operand) {
            let left = operand();
            while (operators.has(this.next())) {
                const operator = operators.get(this.next()), first = left;
                this.at++;
                const second = operand();
                left = values => operator(first(values), second(values));
            }
            return left;
        }
        sum() {
            return this.chain(SUMS, () => this.product());
        }
        product() {
            return this.chain(PRODUCTS, () => this.signed());
        }
        signed() {
            if (this.next() !== '-')
                return this.power();
            this.skip('-');
            const operand = this.signed();
            return values => subtract(0, operand(values));
        }
        power() {
            const base = this.atom();
            if (this.next() !== '^')
                return base;
            this.skip('^');
            const exponent = this.signed();
            return values => power(base(values), exponent(values));
        }
        atom() {
            const word = this.next();
            if (word === '(')
                return this.brackets();
            if (/^\.?\d/.test(word)) {
                this.at++;
                return () => Number(word);
            }
            if (this.names.includes(word)) {
                this.at++;
                return values => values.get(word);
            }
            if (FUNCTIONS.has(word)) {
                this.at++;
                if (this.next() !== '(')
                    this.fail(`${word} of what? Write ${word}(...)`);
                return this.call(FUNCTIONS.get(word));
            }
            return this.fail(/^[A-Za-z_]/.test(word) ? `there is no ${word}, only ` +
                `${this.names.join(', ')} and the functions ${FUNCTION_NAMES}`
                : 'expected a name, a number or a bracket');
        }
        call(f) {
            const argument = this.brackets();
            return values => f(argument(values));
        }
        brackets() {
            this.skip('(');
            const inside = this.sum();
            this.skip(')');
            return inside;
        }
    }

    // A function of the names' values. Throws an error that names the place.
    function parse(text, names) {
        if (text.length > MAX_LENGTH)
            throw Error(`The line is longer than ${MAX_LENGTH} characters.`);
        const parser = new Parser(text, names);
        if (!parser.next())
            throw Error(`The line is empty: write a formula of ${names.join(', ')}.`);
        const formula = parser.sum();
        if (parser.next() === ')')
            parser.fail('this bracket was not opened');
        if (parser.next())
            parser.fail('expected an operator, such as * between two factors');
        return formula;
    }

    // ----------------------------------------------------------------------------- the exercises
    // input(size, start): x, unless it is uneven. constants(size, start): g and the like, for vectors
    // of size elements. outputs(x, constants): what the forward pass computed. loss: L, a function of
    // all these, of which differences are taken. The learner may use `names`. right: spellings of the
    // answer, for the test.

    // Uneven numbers, the same every time: sines of squares.
    const uneven = (size, start) =>
        Array.from({ length: size }, (_, i) => 1.5 * Math.sin((start + i) ** 2 + start));
    const one_hot = (size, position) =>
        Array.from({ length: size }, (_, i) => Number(i === position));

    function softmax(x) {
        const powers = exp(subtract(x, max(x)));
        return divide(powers, sum(powers));
    }
    function normalize(x) {
        const centered = subtract(x, mean(x)), s = Math.sqrt(mean(multiply(centered, centered)));
        return { n: divide(centered, s), s };
    }

    const EXERCISES = {
        product: {
            about: 'y = x·exp(x) in every element, and g = dL/dy. Write dx = dL/dx.',
            names: ['x', 'y', 'g'],
            constants: (size, start) => ({ g: uneven(size, start + 10) }),
            outputs: x => ({ y: multiply(x, exp(x)) }),
            loss: ({ y, g }) => sum(multiply(g, y)),
            right: ['g*(exp(x) + y)', 'g*exp(x)*(1 + x)'],
            mistakes: [
                ['g*exp(x)', 'One use of x is missing: x is also inside exp(x), and contributes ' +
                    'g*x*exp(x) there.'],
                ['g*y', 'One use of x is missing: x is also the first factor, and contributes ' +
                    'g*exp(x) there.'],
                ['exp(x) + y', 'The factor g is missing: this is dy/dx, and dL/dx = g dy/dx.'],
                ['exp(x)', 'The factor g is missing, and one use of x: x is also inside exp(x).'],
                ['y', 'The factor g is missing, and one use of x: x is also the first factor.'],
                ['g*exp(x)*y', 'The contributions of the two uses are multiplied; add them.'],
                ['g*(exp(x) - y)', 'The contributions of the two uses are subtracted; add them.'],
                ['g + exp(x) + y', 'g is added; the chain rule multiplies by it.'],
                ['-g*(exp(x) + y)', 'The sign is wrong: this is minus the right answer.'],
            ],
        },
        silu: {
            about: 'y = x*s in every element, where s = sigmoid(x), and g = dL/dy. ds/dx = ' +
                's*(1 - s). Write dx = dL/dx.',
            names: ['x', 's', 'g'],
            constants: (size, start) => ({ g: uneven(size, start + 10) }),
            outputs: x => ({ s: divide(1, add(1, exp(subtract(0, x)))) }),
            loss: ({ x, s, g }) => sum(multiply(g, multiply(x, s))),
            right: ['g*s*(1 + x*(1 - s))', 'g*(s + x*s*(1 - s))'],
            mistakes: [
                ['s*(1 + x*(1 - s))', 'The factor g is missing: this is dy/dx.'],
                ['g*s', 'The second factor, s, depends on x too.'],
                ['g*x*s*(1 - s)', 'The derivative of the first factor, x, is 1, and leaves s.'],
                ['g*(s + s*(1 - s))', 'The factor x of the second term is missing.'],
                ['g*(s + x*(1 - s))', 'ds/dx is s*(1 - s): its factor s is missing.'],
                ['g*s*(1 - s)', 'This is the derivative of sigmoid alone: the product rule has ' +
                    'two terms.'],
                ['-g*s*(1 + x*(1 - s))', 'The sign is wrong: this is minus the right answer.'],
            ],
        },
        dot: {
            about: 'y = sum(x*w), one number, and g = dL/dy, one number. Write dx = dL/dx.',
            names: ['x', 'w', 'g'],
            constants: (size, start) => ({ w: uneven(size, start + 10), g: 2 + start }),
            outputs: () => ({}),
            loss: ({ x, w, g }) => g * sum(multiply(x, w)),
            right: ['g*w', 'w*g'],
            mistakes: [
                ['g*x', 'The derivative of x_i w_i by x_i is w_i, the other factor.'],
                ['w', 'The factor g is missing: this is dy/dx.'],
                ['w + g', 'g is added; the chain rule multiplies by it.'],
                ['w*sum(x*w)', 'This has the factor y in place of g.'],
                ['-g*w', 'The sign is wrong: this is minus the right answer.'],
            ],
        },
        softmax: {
            about: 'p = softmax(x), and g = dL/dp. Write dx = dL/dx.',
            names: ['p', 'g', 'x'],
            constants: (size, start) => ({ g: uneven(size, start + 10) }),
            outputs: x => ({ p: softmax(x) }),
            loss: ({ p, g }) => sum(multiply(p, g)),
            right: ['p*(g - sum(p*g))', 'p*g - p*sum(g*p)'],
            mistakes: [
                ['p*g', 'The sum is missing: each x_j moves all outputs, not p_j alone.'],
                ['p*(g + sum(p*g))', 'The sign before the sum is wrong: more of x_j means less ' +
                    'of the other outputs.'],
                ['p*(1 - p)*g', 'This is the diagonal of the Jacobian alone: x_j also moves the ' +
                    'p_c with c ≠ j.'],
                ['p*(g - sum(g))', 'The sum is of g; expected of p*g, since dp_c/dx_j has the ' +
                    'factor p_c.'],
                ['p*(g - mean(p*g))', 'This is the mean of p*g; expected the sum: the p_c are ' +
                    'weights that sum to 1 already.'],
                ['p*g - sum(p*g)', 'p multiplies g alone: it is a factor of the sum, too.'],
                ['g - sum(p*g)', 'The factor p is missing.'],
                ['-p*(g - sum(p*g))', 'The sign is wrong: this is minus the right answer.'],
                ['g', 'This is dL/dp: the derivative of softmax is missing.'],
                ['p - g', 'Here g is any vector: p - y is the gradient of cross-entropy alone.'],
            ],
        },
        cross_entropy: {
            about: 'One of N rows: p = softmax(x), and y is 1 at the target and 0 elsewhere. ' +
                'L is the mean of −ln p_t over the N rows. Write dx = dL/dx of this row.',
            names: ['p', 'y', 'N', 'x'],
            constants: (size, start) => ({ y: one_hot(size, start % size), N: 5 - start }),
            outputs: x => ({ p: softmax(x) }),
            loss: ({ p, y, N }) => -Math.log(sum(multiply(p, y))) / N,
            right: ['(p - y)/N', '1/N*p - y/N'],
            mistakes: [
                ['p - y', '1/N is missing: L is the mean over N rows, and this is one of them.'],
                ['(p - y)/N^2', '1/N is there twice: the mean divides once.'],
                ['(p - y)*N', 'N multiplies; the mean over N rows divides by N.'],
                ['p - y/N', 'Only y is divided by N: brackets around p - y are missing.'],
                ['p/N - y', 'Only p is divided by N, expected both: (p - y)/N.'],
                ['(y - p)/N', 'The sign is wrong: more of x_t makes the loss smaller, so dx_t is ' +
                    'negative.'],
                ['y - p', 'The sign is wrong, and 1/N is missing.'],
                ['p/N', 'y is missing: x_t also has the term -x_t in the loss.'],
                ['p', 'y is missing, from the term -x_t of the loss, and so is 1/N.'],
                ['-y/N', 'p is missing: the log-sum-exp in the loss depends on every x_j.'],
                ['-y/p/N', 'This is dL/dp: the derivative of softmax is missing.'],
                ['-y/p', 'This is dL/dp, without 1/N: the derivative of softmax is missing, too.'],
                ['p*(p - y)/N', 'p - y contains the derivative of softmax: it has no factor p.'],
            ],
        },
        weighted_mean: {
            about: 'At one position, with a_i.b_j = x_j: y = sum(x*v)/sum(x), the mean of the ' +
                'values v by the weights x. L = g*y, with one number g. Write dx = dL/dx.',
            names: ['x', 'v', 'y', 'g'],
            input: (size, start) => exp(uneven(size, start)), // weights are positive
            constants: (size, start) => ({ v: uneven(size, start + 10), g: 2 + start }),
            outputs: (x, { v }) => ({ y: divide(sum(multiply(x, v)), sum(x)) }),
            loss: ({ y, g }) => g * y,
            right: ['g*(v - y)/sum(x)', 'g*v/sum(x) - g*y/sum(x)'],
            mistakes: [
                ['g*v/sum(x)', 'The divisor depends on x, too: its term is missing.'],
                ['g*(v + y)/sum(x)', 'The sign: a larger divisor makes y smaller.'],
                ['g*(v - y)', 'The factor 1/sum(x) is missing.'],
                ['(v - y)/sum(x)', 'The factor g is missing: this is dy/dx.'],
                ['g*(v - y)/sum(x)^2', 'The divisor is there twice: one cancels against the ' +
                    'numerator.'],
            ],
        },
        scores: {
            about: 'One query, values of one column: its scores are x, p = exp(x - m)*r, and out ' +
                '= sum(p*v) is one number. Kept are the maximum m, r = 1/l and out, not p. g = ' +
                'dL/dout, one number. Write dx = dL/dx.',
            names: ['x', 'v', 'm', 'r', 'out', 'g'],
            constants: (size, start) => ({ v: uneven(size, start + 10), g: 2 + start }),
            outputs: (x, { v }) => {
                const m = max(x), r = 1 / sum(exp(subtract(x, m)));
                return { m, r, out: sum(multiply(softmax(x), v)) };
            },
            loss: ({ out, g }) => g * out,
            right: ['exp(x - m)*r*(g*v - g*out)', 'g*r*exp(x - m)*(v - out)'],
            mistakes: [
                ['exp(x - m)*r*g*v', 'delta = g*out is missing: each score moves all weights.'],
                ['exp(x - m)*r*(g*v - out)', 'delta is g*out: out lacks its factor g.'],
                ['exp(x - m)*r*g*(v + out)', 'The sign before delta is wrong.'],
                ['exp(x - m)*g*(v - out)', 'The factor r = 1/l is missing: these weights do not ' +
                    'sum to 1.'],
                ['exp(x)*r*g*(v - out)', 'l is a sum of exp(x - m): without m, exp(x)*r is not p.'],
                ['exp(x - m)/r*g*(v - out)', 'r is 1/l already: multiply by it.'],
                ['g*(v - out)', 'The factor p = exp(x - m)*r is missing.'],
                ['g*v', 'This is dL/dp: the derivative of softmax is missing.'],
                ['exp(x - m)*r*(v - out)', 'The factor g is missing.'],
                ['exp(x - m)*r*g*(out - v)', 'The sign is wrong: this is minus the right answer.'],
            ],
        },
        delta: {
            about: 'A memory x answers a key k with sum(x*k), and the right answer is the number ' +
                'v. L = (v - sum(x*k))^2/2. Write dx = dL/dx.',
            names: ['x', 'k', 'v'],
            constants: (size, start) => ({ k: uneven(size, start + 10), v: 2 + start }),
            outputs: () => ({}),
            loss: ({ x, k, v }) => (v - sum(multiply(x, k))) ** 2 / 2,
            right: ['-k*(v - sum(x*k))', 'k*(sum(x*k) - v)'],
            mistakes: [
                ['k*(v - sum(x*k))', 'The sign: this is the step that the delta rule takes, ' +
                    'against the gradient.'],
                ['-k*v', 'The old answer, sum(x*k), is missing.'],
                ['-k*(v - x*k)', 'The answer is a sum over all elements: sum(x*k).'],
                ['-2*k*(v - sum(x*k))', 'The 2 of the square cancels against the division by 2.'],
                ['-x*(v - sum(x*k))', 'The derivative of x_j k_j by x_j is k_j.'],
            ],
        },
        cell: {
            about: 'One step of an LSTM in every element: c = f*x + k, where x is the cell ' +
                'before, and h = o*tanh(c). g = dL/dh, and the next step contributes q to dL/dc. ' +
                'Write dx = dL/dx.',
            names: ['f', 'o', 'c', 'g', 'q', 'x'],
            constants: (size, start) => ({
                f: uneven(size, start + 20), o: uneven(size, start + 30),
                k: uneven(size, start + 40), g: uneven(size, start + 10),
                q: uneven(size, start + 50),
            }),
            outputs: (x, { f, k }) => ({ c: add(multiply(f, x), k) }),
            loss: ({ c, o, g, q }) =>
                sum(multiply(g, multiply(o, c.map(Math.tanh)))) + sum(multiply(q, c)),
            right: ['f*(q + g*o*(1 - tanh(c)^2))', 'f*q + f*g*o*(1 - tanh(c)*tanh(c))'],
            mistakes: [
                ['f*q', 'h depends on c, too: its contribution is missing.'],
                ['f*g*o*(1 - tanh(c)^2)', 'q, the contribution of the next step, is missing.'],
                ['q + g*o*(1 - tanh(c)^2)', 'This is dL/dc: the factor f is missing.'],
                ['f*(q + g*o)', 'The derivative of tanh is missing.'],
                ['f*(q + g*(1 - tanh(c)^2))', 'The factor o is missing.'],
                ['f*(q + g*o*(1 - tanh(c)))', 'The square is missing: the derivative of tanh is ' +
                    '1 - tanh^2.'],
                ['f*(q + g*o*(1 - c^2))', 'This has c in place of tanh(c).'],
            ],
        },
        temperature: {
            about: 'p = softmax(x/T), with one number T, and g = dL/dp. Write dx = dL/dx.',
            names: ['p', 'g', 'T', 'x'],
            constants: (size, start) => ({ g: uneven(size, start + 10), T: 1 + start }),
            outputs: (x, { T }) => ({ p: softmax(divide(x, T)) }),
            loss: ({ p, g }) => sum(multiply(p, g)),
            right: ['p*(g - sum(p*g))/T', '1/T*p*g - p/T*sum(p*g)'],
            mistakes: [
                ['p*(g - sum(p*g))', 'The factor 1/T is missing, the derivative of x/T.'],
                ['p*(g - sum(p*g))*T', 'T divides: the derivative of x/T is 1/T.'],
                ['p*(g - sum(p*g))/T^2', '1/T is there twice.'],
                ['p*g/T', 'The sum is missing: each x_j moves all outputs, not p_j alone.'],
                ['p/T*(g + sum(p*g))', 'The sign before the sum is wrong.'],
            ],
        },
        layernorm: {
            about: 'n = (x - mean(x)) / s, where s is the standard deviation of x, and h = ' +
                'dL/dn. Write dx = dL/dx.',
            names: ['n', 's', 'h', 'x'],
            constants: (size, start) => ({ h: uneven(size, start + 10) }),
            outputs: x => normalize(x),
            loss: ({ n, h }) => sum(multiply(n, h)),
            right: ['(h - mean(h) - n*mean(h*n))/s', '1/s*(h - mean(h)) - n/s*mean(n*h)'],
            mistakes: [
                ['h/s', 'The mean and s depend on x, too: two terms are missing.'],
                ['(h - mean(h))/s', 's depends on x, too: the term with n is missing.'],
                ['(h - n*mean(h*n))/s', 'The mean depends on x, too: its term is missing.'],
                ['(h - mean(h) - n*mean(h))/s', 'The last mean is of h; expected of h*n.'],
                ['(h - mean(h) - mean(h*n))/s', 'The factor n of the last term is missing.'],
                ['h - mean(h) - n*mean(h*n)', 'The factor 1/s is missing.'],
                ['(h - sum(h) - n*sum(h*n))/s', 'These are sums; expected means.'],
                ['-(h - mean(h) - n*mean(h*n))/s', 'The sign is wrong: this is minus the right ' +
                    'answer.'],
            ],
        },
    };

    // --------------------------------------------------------------------------------- the judge
    const CASES = [{ size: 3, start: 1 }, { size: 5, start: 2 }, { size: 7, start: 3 }];

    function differences(x, loss) {
        const h = 1e-5;
        const moved = (j, step) => x.map((a, i) => i === j ? a + step : a);
        return x.map((_, j) => (loss(moved(j, h)) - loss(moved(j, -h))) / (2 * h));
    }

    function near(value, expected) {
        const close = (a, b) => Math.abs(a - b) < 1e-7 * Math.max(1, Math.abs(b));
        return Array.isArray(value) && value.every((a, i) => close(a, expected[i]));
    }

    // The sentence about a wrong value.
    function describe(exercise, value, values) {
        if (!Array.isArray(value))
            return 'This is one number; dx has one number per element of x.';
        if (!value.every(Number.isFinite))
            return 'Some elements are infinite or NaN: look for a division by 0, or a log or ' +
                'sqrt of a negative number.';
        const known = exercise.mistakes.find(([text]) =>
            near(value, parse(text, exercise.names)(values)));
        return known ? known[1] : 'Not right, and none of the usual mistakes: compare the numbers.';
    }

    // Judges a formula in one case: returns its value and the expected one, and if they differ a
    // sentence.
    function judge_case(exercise, formula, { size, start }) {
        const x = (exercise.input ?? uneven)(size, start);
        const constants = exercise.constants(size, start);
        const values_at = moved => ({ x: moved, ...constants,
            ...exercise.outputs(moved, constants) });
        const values = new Map(Object.entries(values_at(x)));
        const expected = differences(x, moved => exercise.loss(values_at(moved)));
        const value = formula(values);
        const sentence = near(value, expected) ? '' : describe(exercise, value, values);
        return { sentence, mine: elements(value), expected };
    }

    // Returns { right, sentence } and, if text is a formula, its numbers: mine and expected.
    function judge(name, text) {
        const exercise = EXERCISES[name];
        let formula;
        try {
            formula = parse(text, exercise.names);
        } catch (error) {
            return { right: false, sentence: error.message };
        }
        const results = CASES.map(each => judge_case(exercise, formula, each));
        const wrong = results.find(result => result.sentence);
        if (wrong)
            return { right: false, ...wrong };
        const sentence = 'Right, for vectors of 3, 5 and 7 elements.';
        return { ...results[0], right: true, sentence };
    }

    // ---------------------------------------------------------------------------------- the page
    // element is a function of page.js.
    function table({ mine, expected }) {
        const row = (cell, ...texts) =>
            element('tr', {}, ...texts.map(text => element(cell, {}, text)));
        const digits = number => number === undefined ? '' : number.toFixed(5);
        return element('table', { class: 'numbers' }, row('th', 'your dx', 'central differences'),
            ...expected.map((number, i) => row('td', digits(mine[i]), digits(number))));
    }

    function fill(place, index) {
        const name = place.dataset.exercise, id = `try${index}`;
        if (!Object.hasOwn(EXERCISES, name))
            throw Error(`there is no exercise ${name}, only ${Object.keys(EXERCISES).join(', ')}`);
        const { about, names } = EXERCISES[name];
        const input = element('input', {
            id, type: 'text', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false',
            'aria-describedby': `${id}-help`, style: 'flex-basis: 12rem',
        });
        const output = element('output', { for: id }), numbers = element('div'); // output is live

        function submit(event) {
            event.preventDefault();
            const result = judge(name, input.value);
            output.className = result.right ? 'right' : 'wrong';
            output.textContent = (result.right ? '✓ ' : '✗ ') + result.sentence;
            numbers.replaceChildren(...result.mine ? [table(result)] : []);
        }
        place.replaceChildren(element('form', { submit },
            element('label', { for: id }, about),
            element('span', { style: 'flex-wrap: wrap' }, // on a phone the button is below
                    element('b', {}, 'dx ='), input, element('button', {}, 'Check')),
            element('small', { id: `${id}-help` }, `Write with ${names.join(', ')}, numbers, ` +
                `+ - * / ^ ( ) and ${FUNCTION_NAMES}. Operators and functions act element by ` +
                'element; the sum, mean or max of a vector is one number.'),
            output, numbers));
    }

    if (typeof document === 'undefined')
        module.exports = { judge, EXERCISES };
    else
        document.querySelectorAll('.try').forEach(fill);
}
