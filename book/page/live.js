// The copy task in a page: a worker trains, the page draws. MODULE, the WebAssembly module as
// base64 of gzip, and openModule precede this file. Nothing happens without an element "live".

// The module's bytes, for a worker.
async function unpackModule() {
    const gzip = Uint8Array.from(atob(MODULE), letter => letter.charCodeAt(0));
    const stream = new Blob([gzip]).stream().pipeThrough(new DecompressionStream('gzip'));
    return new Response(stream).arrayBuffer();
}

// A worker that runs a function, which uses nothing outside itself but openModule.
function startWorker(program) {
    const source = new Blob([`${openModule}\n(${program})();`]);
    return new Worker(URL.createObjectURL(source));
}

// The worker's program. It travels as text, so it uses nothing of this file but openModule.
function copyTaskWorker() {
    'use strict';
    const SLICE = 100; // milliseconds of training, after which messages are handled
    let module, sizes; // a WebAssembly.Module; { heads, state }: the number of heads, numbers per S
    let program = null; // the module's instance; null after a raised error
    let sentences = []; // what the instance wrote to standard error
    let length = 0, step = 0, timer = 0, running = false;

    const commands = {
        open({ bytes, ...given }) {
            module = new WebAssembly.Module(bytes);
            sizes = given;
        },
        start(options) {
            sentences = [];
            program ??= openModule(module, (file, line) => file === 2 && sentences.push(line));
            program.start(options.seed, options.rate, options.length);
            length = options.length;
            step = 0;
            postMessage({ started: true, view: look(1) });
        },
        rate: ({ rate }) => program?.set_rate(rate),
        another: () => program && postMessage({ view: look(1) }),
        run({ on }) {
            running = on;
            clearTimeout(timer);
            train();
        },
    };

    function train() {
        if (!running || !program)
            return;
        const points = [], start = performance.now();
        let milliseconds;
        do {
            points.push([++step, program.steps(1), program.get_accuracy()]);
            milliseconds = performance.now() - start;
        } while (milliseconds < SLICE);
        postMessage({ points, milliseconds, view: look(0) });
        timer = setTimeout(() => attempt(train));
    }

    function copy(Type, at, count) {
        return new Type(program.memory.buffer, at, count).slice();
    }

    // What show() leaves: of a new sequence, or of the last one with the weights of now.
    function look(another) {
        const symbols = program.show(another), heads = [];
        for (let h = 0; h < sizes.heads; h++) {
            const weights = [];
            for (let i = 0; i < length; i++)
                weights.push(copy(Float32Array, program.get_weights(h, i), i + 1));
            const states = copy(Float32Array, program.get_state(h, 0), length * sizes.state);
            heads.push({ weights, states });
        }
        return {
            another, symbols, heads,
            tokens: copy(Int32Array, program.get_tokens(), length),
            predicted: copy(Int32Array, program.get_predicted(), length),
        };
    }

    // After an error the instance is lost: the next start makes another.
    function attempt(action) {
        try {
            action();
        } catch (error) {
            program = null;
            running = false;
            postMessage({ error: sentences.join(' ') || String(error) });
        }
    }

    onmessage = ({ data }) => attempt(() => commands[data.command](data));
}

// The page: `points` has [step, loss, accuracy] of each step, `view` what show() left.
function copyTaskPage(root) {
    'use strict';
    const HEADS = 4, ROWS = 16, COLUMNS = 17; // of S~
    const CELL = 18; // pixels of a canvas per number of S~
    const LETTERS = '·ABCDEFGHIJ'; // of tokens: digits would look like positions
    const READING_PACE = 300; // milliseconds per position
    const SPEAKING_PACE = 10000;
    const CURVE = { height: 190, left: 34, right: 8, top: 8, bottom: 24, maximum: 2.6 };
    const still = matchMedia('(prefers-reduced-motion: reduce)');
    const dark = matchMedia('(prefers-color-scheme: dark)');
    const part = name => document.getElementById('live-' + name);
    const canvases = root.querySelectorAll('canvas');
    const radios = root.querySelectorAll('[name=live-head]');
    let worker = null, running = false;
    let points = [], milliseconds = 0;
    let reached = null; // { step, seconds }: when 99 % were right first
    let view = null, position = 0, moved = 0, follows = true, spoken = 0;

    // ------------------------------------------------------------------------------- the worker
    async function begin() {
        const bytes = await unpackModule();
        worker = startWorker(copyTaskWorker);
        worker.onmessage = ({ data }) => receive(data);
        worker.onerror = event => cannotRun(event.message);
        send('open', { bytes, heads: HEADS, state: ROWS * COLUMNS });
        start();
    }

    function send(command, values = {}) {
        worker.postMessage({ command, ...values });
    }

    // An older browser: the text for pages without scripts instead.
    function cannotRun(reason) {
        const text = document.createElement('div');
        text.innerHTML = document.querySelector('noscript')?.textContent ?? '';
        root.hidden = true;
        root.before(`This browser cannot run the program: ${reason}`, text);
    }

    function rate() {
        return Number((10 ** part('rate').value).toPrecision(2));
    }

    function start() {
        part('error').hidden = true;
        send('start', {
            seed: Number(part('seed').value), rate: rate(), length: Number(part('length').value),
        });
    }

    function setRunning(on) {
        running = on;
        part('run').textContent = on ? 'Pause' : 'Run';
        send('run', { on });
    }

    // Messages keep their order: what follows "started" belongs to the new run.
    function receive(data) {
        if (data.error)
            showError(data.error);
        else {
            if (data.started)
                reset();
            addPoints(data.points ?? [], data.milliseconds ?? 0);
            showView(data.view);
        }
    }

    function showError(sentence) {
        if (root.hidden) // before the first view: the module does not start at all
            return cannotRun(sentence);
        setRunning(false);
        part('error').textContent = sentence;
        part('error').hidden = false;
    }

    function reset() {
        points = [];
        milliseconds = 0;
        reached = null;
        follows = true;
        part('run').disabled = false;
        root.hidden = false;
        root.dataset.ready ??= performance.now().toFixed(0); // for the tests, as losses below
    }

    // ------------------------------------------------------------------------------- the curve
    // The mean of a column of the last ten points.
    function recent(column) {
        const last = points.slice(-10);
        return last.reduce((sum, point) => sum + point[column], 0) / last.length;
    }

    function addPoints(added, time) {
        for (const point of added) {
            points.push(point);
            milliseconds += time / added.length;
            // Per point, not per message: the step must not depend on how fast the machine is.
            if (!reached && points.length >= 10 && recent(2) >= 0.99)
                reached = { step: points.length, seconds: milliseconds / 1000 };
        }
        root.dataset.losses = JSON.stringify(points.filter(([step]) => step % 20 === 0));
    }

    function status() {
        if (!points.length)
            return 'Not trained yet: the predictions are random. Run trains with 16 new sequences '
                + 'per step.';
        const right = (100 * recent(2)).toFixed(1), pace = milliseconds / points.length;
        let text = `Step ${points.length}: loss ${recent(1).toFixed(3)}, ${right} % of the copied `
            + `symbols right, means of ten steps; ${pace.toFixed(1)}\u00a0ms per step.`;
        if (reached)
            text += ` It reached 99 % at step ${reached.step}, `
                + `in ${reached.seconds.toFixed(1)}\u00a0s.`;
        return text;
    }

    // A screen reader hears the status now and then.
    function speak() {
        if (running && performance.now() - spoken < SPEAKING_PACE)
            return;
        spoken = performance.now();
        part('spoken').textContent = status();
    }

    // Means of neighboring points where there are more than pixels.
    function lossPath(x, y) {
        const every = Math.ceil(points.length / 300);
        let path = '', sum = 0;
        points.forEach(([step, loss], i) => {
            sum += loss;
            if (i % every === every - 1) {
                path += `${path ? 'L' : 'M'}${x(step).toFixed(1)} ${y(sum / every).toFixed(1)}`;
                sum = 0;
            }
        });
        return `<path class="loss" d="${path}"/>`;
    }

    // The horizontal axis ends at 200, 500, 1000, 2000, 5000, ... steps.
    function axisEnd() {
        for (let end = 100; ; end *= 10)
            for (const factor of [2, 5, 10])
                if (points.length <= factor * end)
                    return { end: factor * end, unit: factor * end / (factor === 2 ? 4 : 5) };
    }

    function drawCurve() {
        const svg = part('curve'), { height, left, top, bottom, maximum } = CURVE;
        const width = svg.clientWidth || 560, right = width - CURVE.right, floor = height - bottom;
        const { end, unit } = axisEnd();
        const x = step => left + (right - left) * step / end;
        const y = loss => floor - (floor - top) * Math.min(loss, maximum) / maximum;
        const text = (at, baseline, anchor, words) =>
            `<text x="${at}" y="${baseline}" text-anchor="${anchor}">${words}</text>`;
        let drawn = text(left + 6, floor - 6, 'start', 'loss');
        for (const loss of [0, 1, 2])
            drawn += `<path class="grid" d="M${left} ${y(loss)}H${right}"/>`
                + text(left - 6, y(loss) + 4, 'end', loss);
        for (let step = 0; x(step) < right - 90; step += unit)
            drawn += text(x(step), height - 6, 'middle', step);
        drawn += text(right, height - 6, 'end', `${end} steps`);
        drawn += `<path class="guess" d="M${left} ${y(Math.log(10))}H${right}"/>`
            + text(right, y(Math.log(10)) - 4, 'end', 'guessing: ln 10');
        if (reached)
            drawn += `<path class="guess" d="M${x(reached.step)} ${top + 20}V${floor}"/>`
                + text(x(reached.step), top + 36, 'end', '99 % right&nbsp;');
        svg.setAttribute('viewBox', `0 0 ${width} ${height}`); // a unit is a pixel on any screen
        svg.innerHTML = drawn + lossPath(x, y);
    }

    // ------------------------------------------------------------------------------- the sequence
    function showView(next) {
        view = next;
        part('position').max = view.tokens.length - 1;
        if (view.another)
            position = view.symbols; // the separator: the first copied symbol is next
        else if (running && follows && !still.matches)
            followReading();
        draw();
    }

    function followReading() {
        const now = performance.now();
        if (now - moved < READING_PACE)
            return;
        moved = now;
        position = (position + 1) % (2 * view.symbols);
    }

    // Where the symbol stands that position i should predict, or -1.
    function sourceOf(i) {
        return view.symbols <= i && i < 2 * view.symbols ? i - view.symbols : -1;
    }

    function chosenHead() {
        return [...radios].findIndex(radio => radio.checked);
    }

    function tokenCell(token, ...classes) {
        return `<td class="symbol ${classes.join(' ')}" style="--symbol: ${token}">`
            + `${LETTERS[token]}</td>`;
    }

    function readCell(token, i) {
        const classes = [i === position ? 'now' : '', i === sourceOf(position) ? 'source' : ''];
        return token && i <= position ? tokenCell(token, ...classes)
            : `<td class="${classes.join(' ')}">${LETTERS[token]}</td>`;
    }

    // A prediction stands below the token that it predicts.
    function predictedCell(token, i) {
        const predicted = view.predicted[i - 1];
        if (sourceOf(i - 1) < 0)
            return '<td></td>';
        return predicted === token ? tokenCell(token)
            : `<td class="wrong">${LETTERS[predicted]}</td>`;
    }

    function drawSequence() {
        const weights = view.heads[chosenHead()].weights[position], tokens = [...view.tokens];
        const row = (label, cell) => `<th scope="row">${label}</th>${tokens.map(cell).join('')}`;
        const most = Math.max(...weights);
        const bar = i => `<i class="${i === sourceOf(position) ? 'source' : ''}"`
            + ` style="height: ${(100 * weights[i] / most).toFixed(0)}%"></i>`;
        part('scroll').style.setProperty('--length', tokens.length);
        part('reads').innerHTML = row('reads', readCell);
        part('predicts').innerHTML = row('predicts', predictedCell);
        part('attends').innerHTML =
            row('attends to', (_, i) => `<td>${i <= position ? bar(i) : ''}</td>`);
        part('position').value = position;
        const now = part('reads').cells[position + 1]; // on a narrow screen the row scrolls along
        part('scroll').scrollLeft = now.offsetLeft - part('scroll').clientWidth / 2;
    }

    function name(i) {
        return view.tokens[i] ? LETTERS[view.tokens[i]]
            : i === view.symbols ? 'the separator' : 'padding';
    }

    function reading() {
        const head = chosenHead(), weights = view.heads[head].weights[position];
        const source = sourceOf(position), most = weights.indexOf(Math.max(...weights));
        let right = 0;
        for (let i = view.symbols; i < 2 * view.symbols; i++)
            right += view.predicted[i] === view.tokens[i + 1];
        let text = `${right} of ${view.symbols} symbols are right. `
            + `Position ${position} reads ${name(position)}`;
        if (source >= 0) {
            text += ` and predicts ${LETTERS[view.predicted[position]]}`;
            if (view.predicted[position] !== view.tokens[source])
                text += ` instead of ${name(source)}`;
        }
        text += `. Head ${head + 1} attends most to position ${most}, ${name(most)}, `
            + `with weight ${weights[most].toFixed(2)}`;
        if (source >= 0 && source !== most)
            text += `; to position ${source}, whose symbol is next, ${weights[source].toFixed(2)}`;
        return text + '.';
    }

    // ------------------------------------------------------------------------------- S
    // A Hinton diagram: the area of a square is |value|, full for the largest of all positions. It
    // is filled where the value is positive, hollow where it is negative: legible without colors.
    function drawState(canvas, states) {
        const context = canvas.getContext('2d'), style = getComputedStyle(root);
        const first = position * ROWS * COLUMNS;
        const largest = states.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
        context.clearRect(0, 0, canvas.width, canvas.height);
        context.fillStyle = style.getPropertyValue('--plus');
        context.strokeStyle = style.getPropertyValue('--minus');
        context.lineWidth = CELL / 6;
        for (let at = 0; at < ROWS * COLUMNS; at++) {
            const value = states[first + at], full = value > 0;
            const size = Math.sqrt(Math.abs(value) / largest) * (CELL - 1) - (full ? 0 : CELL / 6);
            const x = (at % COLUMNS + 0.5) * CELL - size / 2;
            const y = (Math.floor(at / COLUMNS) + 0.5) * CELL - size / 2;
            if (full)
                context.fillRect(x, y, size, size);
            else if (size > 0)
                context.strokeRect(x, y, size, size);
        }
    }

    function draw() {
        if (!view)
            return;
        drawCurve();
        drawSequence();
        canvases.forEach((canvas, h) => drawState(canvas, view.heads[h].states));
        part('status').textContent = status();
        part('reading').textContent = reading();
        part('position').setAttribute('aria-valuetext', `${position}, ${name(position)}`);
        speak();
    }

    // ------------------------------------------------------------------------------- the controls
    function choosePosition(value) {
        position = value;
        follows = false;
        draw();
    }

    function showRate() {
        part('rate-value').textContent = rate();
        part('rate').setAttribute('aria-valuetext', rate());
    }

    function restart() {
        start();
        setRunning(running);
    }

    part('run').onclick = () => {
        if (!part('error').hidden)
            start();
        setRunning(!running);
        speak();
    };
    part('again').onclick = restart;
    part('length').onchange = restart;
    part('seed').onchange = restart;
    part('length').oninput = () => {
        part('length-value').textContent = part('length').value;
    };
    part('rate').oninput = () => {
        showRate();
        send('rate', { rate: rate() });
    };
    part('another').onclick = () => send('another');
    part('position').oninput = () => choosePosition(Number(part('position').value));
    part('reads').onclick = event => {
        const cell = event.target.closest('td');
        if (cell)
            choosePosition(cell.cellIndex - 1);
    };
    radios.forEach(radio => {
        radio.onchange = draw;
    });
    dark.addEventListener('change', draw);
    addEventListener('resize', draw);
    showRate();
    begin().catch(error => cannotRun(error.message));
}

if (document.getElementById('live'))
    copyTaskPage(document.getElementById('live'));
