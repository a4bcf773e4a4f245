// Milliseconds of four ways to compute causal attention, measured in this page by the library's
// module: MODULE, openModule, unpackModule and startWorker are those of module.js.
'use strict';

// The worker's program: each form at each length, several times, after a while of compiling. The
// smallest time counts, since other programs only make it longer.
function measureForms() {
    'use strict';
    const ROUNDS = 20;
    const sentences = [];
    let program;

    // Milliseconds of one pass: the mean of those that fit into `least` milliseconds.
    function run(form, n, least) {
        const start = performance.now();
        let count = 0, time;
        do {
            program.run_form(form, n);
            count++;
            time = performance.now() - start;
        } while (time < least);
        return time / count;
    }
    function measure({ bytes, forms, sizes }) {
        program = openModule(new WebAssembly.Module(bytes), (file, line) => file === 2 && sentences.push(line));
        for (const form of forms)
            run(form, 256, 100);
        for (let round = 1; round <= ROUNDS; round++) {
            const times = sizes.map(n => forms.map(form => run(form, n, 3)));
            postMessage({ times, isLast: round === ROUNDS });
        }
    }
    onmessage = ({ data }) => {
        try {
            measure(data);
        } catch (error) {
            postMessage({ error: sentences.join(' ') || String(error) });
        }
    };
}

picture('forms', (place, figure) => {
    // form: AttentionForm, and 0 for softmax attention; marker: of radius r around 0, 0
    const FORMS = [
        { form: 0, name: 'softmax', color: 'var(--plus)',
          marker: r => `M${-r} ${-r}H${r}V${r}H${-r}Z` },
        { form: 4, name: 'quadratic', color: 'var(--bad)',
          marker: r => `M0 ${-1.2 * r}L${1.2 * r} ${r}H${-1.2 * r}Z` },
        { form: 1, name: 'recurrent', color: 'var(--accent)', isHollow: true,
          marker: r => `M${-1.5 * r} 0a1 1 0 1 0 ${3 * r} 0a1 1 0 1 0 ${-3 * r} 0` }, // larger: others lie on it
        { form: 2, name: 'chunked', color: 'var(--ink)',
          marker: r => `M0 ${-r}L${r} 0L0 ${r}L${-r} 0Z` },
    ];
    const SIZES = [64, 128, 256, 512, 1024, 2048], LAST = 2048;
    const LEFT = 42, RIGHT = 66, TOP = 10, BOTTOM = 34;
    let times = null, worker = null; // times[k][f]: milliseconds at SIZES[k] by FORMS[f]
    const sentence = element('p', { id: 'forms-text', 'aria-live': 'polite', style: 'min-height: 6em' });
    const svg = element('svg', { role: 'img', 'aria-labelledby': 'forms-text' });
    const table = element('table', { class: 'numbers', 'aria-label': 'milliseconds of one forward pass' });
    const start = button('Measure', measure);

    const time = (form, n) => times[SIZES.indexOf(n)][FORMS.indexOf(form)];
    const short = value => value.toFixed(value < 1 ? 3 : value < 10 ? 2 : 1);

    // The decades of the vertical axis.
    function range() {
        const all = times?.flat();
        return all ? [Math.floor(Math.log10(Math.min(...all))), Math.ceil(Math.log10(Math.max(...all)))] : [-2, 1];
    }
    function drawChart() {
        const width = Math.max(place.clientWidth, 260), height = Math.max(250, Math.min(width * 0.5, 340));
        const [bottom, top] = range(), floor = height - BOTTOM;
        const x = n => LEFT + (width - LEFT - RIGHT) * Math.log2(n / SIZES[0]) / Math.log2(LAST / SIZES[0]);
        const y = value => floor - (floor - TOP) * (Math.log10(value) - bottom) / (top - bottom);
        const text = (at, baseline, anchor, words) =>
            element('text', { x: at, y: baseline, 'text-anchor': anchor }, words);
        const parts = [text((LEFT + width - RIGHT) / 2, height - 4, 'middle', 'positions N'),
            text(LEFT + 6, TOP + 12, 'start', 'milliseconds')];
        for (const n of SIZES)
            parts.push(element('line', { class: 'grid', x1: x(n), x2: x(n), y1: TOP, y2: floor }),
                text(x(n), floor + 14, 'middle', n));
        for (let e = bottom; e <= top; e++)
            parts.push(element('line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(10 ** e), y2: y(10 ** e) }),
                text(LEFT - 5, y(10 ** e) + 4, 'end', 10 ** e >= 1 ? 10 ** e : (10 ** e).toFixed(-e)));
        // Directions: what grows with N, and with N².
        const labels = [], from = 10 ** bottom * 1.4;
        for (const [power, name] of [[1, 'like N'], [2, 'like N²']]) {
            const end = from * 4 ** power;
            parts.push(element('line', { class: 'guess', x1: x(LAST / 4), y1: y(from), x2: x(LAST), y2: y(end) }));
            labels.push({ name, x: x(LAST), y: y(end) + 4 });
        }
        for (const form of times ? FORMS : []) {
            const points = SIZES.map(n => [x(n), y(time(form, n))]);
            parts.push(element('polyline', { points: points.map(point => point.join()).join(' '), fill: 'none',
                stroke: form.color, 'stroke-width': 1.5 }));
            for (const [px, py] of points)
                parts.push(element('path', { d: form.marker(4), transform: `translate(${px} ${py})`,
                    fill: form.isHollow ? 'var(--paper)' : form.color, stroke: form.color, 'stroke-width': 1.5 }));
            labels.push({ name: form.name, x: x(LAST), y: y(time(form, LAST)) + 4 });
        }
        labels.sort((a, b) => a.y - b.y).forEach((label, i) => { // from the top, at least 14 apart
            label.y = Math.max(label.y, i ? labels[i - 1].y + 14 : 0);
            parts.push(element('text', { x: label.x + 9, y: label.y, style: 'fill: var(--ink)' }, label.name));
        });
        svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
        svg.replaceChildren(...parts);
    }
    function drawTable() {
        const padding = { style: 'padding: 0.15rem 0.35rem' };
        const head = ['N', ...FORMS.map(form => form.name)];
        table.replaceChildren(element('tr', {}, ...head.map(name => element('th', { scope: 'col', ...padding }, name))),
            ...SIZES.map(n => element('tr', {}, element('th', { scope: 'row', ...padding }, n),
                ...FORMS.map(form => element('td', padding, times ? short(time(form, n)) : '–')))));
    }
    function draw() {
        drawChart();
        drawTable();
    }
    function conclusion() {
        const growth = FORMS.map(form => `${form.name} ${(time(form, LAST) / time(form, LAST / 2)).toFixed(1)}`);
        const [softmax, quadratic, recurrent] = FORMS;
        const shorter = SIZES.find(n => time(recurrent, n) < time(quadratic, n));
        return `From ${LAST / 2} to ${LAST} positions the times grew by these factors: ${growth.join(', ')}. ` +
            (shorter ? `The recurrent form is faster than the quadratic one from ${shorter} positions on. ` : '') +
            `At ${LAST} positions it takes ${short(time(recurrent, LAST))} ms, softmax attention ` +
            `${short(time(softmax, LAST))} ms: ` +
            `${(time(softmax, LAST) / time(recurrent, LAST)).toFixed(0)} times as long.`;
    }
    function receive({ times: measured, isLast, error }) {
        if (error)
            return end(`This browser cannot measure: ${error}`);
        times = measured.map((row, k) => row.map((value, f) => Math.min(value, times?.[k][f] ?? value)));
        draw();
        if (isLast)
            end(conclusion());
    }
    function end(words) {
        worker?.terminate();
        worker = null;
        sentence.textContent = words;
        start.textContent = 'Measure again';
        start.disabled = false;
        figure.dataset.times = JSON.stringify(times); // for the tests
    }
    async function measure() {
        times = null;
        start.disabled = true;
        start.textContent = 'Measuring ...';
        sentence.textContent = 'Each form is measured several times at each length. Of its times, the shortest counts.';
        try {
            const bytes = await unpackModule();
            worker = startWorker(measureForms);
            worker.onmessage = ({ data }) => receive(data);
            worker.onerror = event => end(`This browser cannot measure: ${event.message}`);
            worker.postMessage({ bytes, forms: FORMS.map(({ form }) => form), sizes: SIZES });
        } catch (error) {
            end(`This browser cannot measure: ${error.message}`);
        }
    }
    sentence.textContent = 'Nothing is measured yet. "Measure" runs each form at six lengths, in about three ' +
        'seconds: one forward pass of one head with D = M = 32. The dashed lines show the directions of what grows ' +
        'like N and like N².';
    place.append(controls(start), svg, element('div', { class: 'scroll' }, table), sentence);
    addEventListener('resize', draw);
    draw();
});
