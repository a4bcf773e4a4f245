// The book's module without a browser: node tests/book_module.mjs BUILD_DIRECTORY
// What it trains is what the native program of the same source trains, whose output is copy.txt.
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

const build = process.argv[2];
if (!build) {
    console.error('usage: node tests/book_module.mjs BUILD_DIRECTORY');
    process.exit(2);
}

let checks = 0, failed = 0;
function check(ok, claim) {
    checks++;
    failed += !ok;
    console.log(ok ? 'ok  ' : 'FAIL', claim);
}

// As a page without the copy task loads it: live.js must then leave the page alone.
const script = readFileSync(`${build}/book/module.js`, 'utf8');
const load = Function('document', `${script}\nreturn { MODULE, openModule };`);
const { MODULE, openModule } = load({ getElementById: () => null });
const bytes = gunzipSync(Buffer.from(MODULE, 'base64'));
const module = new WebAssembly.Module(bytes);
console.log(`module.js ${script.length} bytes: wasm ${bytes.length}, gzip `
    + `${Buffer.byteLength(MODULE, 'base64')}, base64 ${MODULE.length}`);

const native = new Map();
for (const [, step, loss] of
    readFileSync(`${build}/book/copy.txt`, 'utf8').matchAll(/^step +(\d+) +loss ([\d.]+)/gm))
    native.set(Number(step), Number(loss));

// An instance, and the lines that it writes to standard error.
function open() {
    const sentences = [];
    const program = openModule(module, (file, line) => file === 2 && sentences.push(line));
    return { program, sentences };
}

// The sentence of the error that the action raises; null if it raises none.
function raised(action) {
    const { program, sentences } = open();
    try {
        action(program);
        return null;
    } catch (error) {
        return error instanceof WebAssembly.RuntimeError ? sentences.join(' ') : String(error);
    }
}

function read(Type, program, at, count) {
    return new Type(program.memory.buffer, at, count).slice();
}

function lossesOf(program, count) {
    program.start(1, 0.002, 24);
    return Array.from({ length: count }, () => program.steps(1));
}

const { program } = open();
const losses = lossesOf(program, 200);
for (const [step, tolerance] of [[20, 1e-5], [100, 1e-5], [200, 1e-2]]) {
    const loss = losses[step - 1], error = Math.abs(loss / native.get(step) - 1);
    check(error <= tolerance, `step ${step}: loss ${loss.toFixed(6)}, native ${native.get(step)}: `
        + `relative error ${error.toExponential(1)}, at most ${tolerance}`);
}

check(lossesOf(program, 50).every((loss, i) => loss === losses[i]),
    'a second start gives the same bits, for 50 steps');
check(lossesOf(open().program, 50).every((loss, i) => loss === losses[i]),
    'a second instance gives the same bits, for 50 steps');

// 99 %: the mean of ten steps, as the page has it.
{
    const accuracies = [], start = performance.now();
    const mean = () => accuracies.slice(-10).reduce((sum, value) => sum + value / 10, 0);
    program.start(1, 0.002, 24);
    do {
        program.steps(1);
        accuracies.push(program.get_accuracy());
    } while (accuracies.length < 1100 && !(accuracies.length >= 10 && mean() >= 0.99));
    const pace = (performance.now() - start) / accuracies.length;
    check(mean() >= 0.99, `99 % of the symbols are right at step ${accuracies.length}, `
        + `expected at most 1100; ${pace.toFixed(1)} ms per step`);
}

// What show() leaves for the page.
{
    const n = program.show(1), tokens = read(Int32Array, program, program.get_tokens(), 24);
    const predicted = read(Int32Array, program, program.get_predicted(), 24);
    const copied = tokens.slice(n + 1, 2 * n + 1);
    check(tokens[n] === 0 && copied.every((token, i) => token > 0 && token === tokens[i]),
        `show: ${n} symbols, a separator, the same symbols`);
    const right = copied.filter((token, i) => predicted[n + i] === token).length;
    check(right >= n - 1, `show: ${right} of ${n} symbols are right after training`);
    let worst = 0, smallest = Infinity;
    for (let head = 0; head < 4; head++)
        for (let i = 0; i < 24; i++) {
            const weights = read(Float32Array, program, program.get_weights(head, i), i + 1);
            worst = Math.max(worst, Math.abs(weights.reduce((sum, value) => sum + value, 0) - 1));
            const state = read(Float32Array, program, program.get_state(head, i), 16 * 17);
            smallest = Math.min(smallest, ...state.filter((_, at) => at % 17 === 16));
        }
    check(worst < 1e-3, // eps takes more where den is small
        `show: weights of a position add up to 1, within ${worst.toExponential(1)}`);
    check(smallest >= 0, 'show: the normalizer, a sum of phi(k), is nowhere negative');
    program.show(0);
    const again = read(Int32Array, program, program.get_tokens(), 24);
    check(again.every((token, i) => token === tokens[i]), 'show(0) keeps the sequence');
}

{
    const sentence = raised(bad => bad.start(1, 0.002, -3));
    check(/expected 1 or more/.test(sentence), `length -3 raises: ${sentence}`);
    const long = raised(bad => bad.start(1, 0.002, 65));
    check(/expected at most 64/.test(long), `length 65 raises: ${long}`);
    const rate = raised(bad => bad.start(1, -1, 24));
    check(/learning_rate is -1, expected 0 or more/.test(rate), `rate -1 raises: ${rate}`);
    check(lossesOf(open().program, 20).every((loss, i) => loss === losses[i]),
        'a new instance then gives the same bits, for 20 steps');
}

console.log(`${checks} checks, ${failed} failed`);
process.exit(failed ? 1 : 0);
