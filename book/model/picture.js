// Two pictures of numbers that the chapter's programs printed: the page holds their output, so that
// no number is typed a second time.
'use strict';

// The lines of a section in the page as lists of words.
function modelLines(id) {
    return document.querySelector(`#${id} pre`).textContent.trim().split('\n').map(line => line.trim().split(/\s+/));
}

picture('model', place => {
    const losses = modelLines('model-losses').map(([, step, , loss]) => ({ step, loss }));
    const read = id => modelLines(id).map(([name, ...norms]) => ({ name, norms: norms.map(Number) }));
    const values = read('model-values'), gradients = read('model-gradients');
    const LEFT = 112, RIGHT = 8, ROW = 19, TOP = 20, DECADES = [-3, 1];
    let column = 0;
    const sentence = element('p', { id: 'model-text', 'aria-live': 'polite', style: 'min-height: 6em' });
    const svg = element('svg', { role: 'img', 'aria-labelledby': 'model-text' });

    function draw() {
        const width = Math.max(place.clientWidth, 260), bottom = TOP + ROW * values.length;
        const x = norm => LEFT + (Math.max(Math.log10(norm), DECADES[0]) - DECADES[0])
            / (DECADES[1] - DECADES[0]) * (width - LEFT - RIGHT);
        const bar = (norm, y, color) => element('rect', { x: LEFT, y, width: Math.max(x(norm) - LEFT, 0), height: 6,
            style: `fill: ${color}` });
        const parts = [];
        for (let e = DECADES[0]; e <= DECADES[1]; e++)
            parts.push(element('line', { class: 'grid', x1: x(10 ** e), x2: x(10 ** e), y1: TOP, y2: bottom }),
                element('text', { x: x(10 ** e), y: TOP - 6, 'text-anchor': e === DECADES[1] ? 'end' : 'middle' },
                    String(10 ** e)));
        values.forEach(({ name, norms }, i) => {
            const y = TOP + ROW * i;
            parts.push(element('text', { x: LEFT - 6, y: y + 13, 'text-anchor': 'end' }, name),
                bar(norms[column], y + 3, 'var(--soft)'), bar(gradients[i].norms[column], y + 10, 'var(--accent)'));
        });
        svg.setAttribute('viewBox', `0 0 ${width} ${bottom + 4}`);
        svg.replaceChildren(...parts);
        describe();
    }
    function describe() {
        const length = list => Math.hypot(...list.map(({ norms }) => norms[column]));
        const sorted = gradients.filter(({ norms }) => norms[column] > 0)
            .sort((a, b) => b.norms[column] - a.norms[column]);
        const [first, last] = [sorted[0], sorted[sorted.length - 1]];
        const zero = gradients.filter(({ norms }) => norms[column] === 0).map(({ name }) => name);
        const when = column ? `After ${losses[column].step} steps` : 'Before the first step';
        sentence.textContent = `${when} the loss is ${losses[column].loss}. The norm of all weights ` +
            `(upper bars) is ${length(values).toFixed(1)}, that of all gradients (lower bars, blue) ` +
            `${length(gradients).toFixed(2)}. The largest gradient is that of ${first.name}, ` +
            `${first.norms[column]}; the smallest that of ${last.name}, ${last.norms[column]}` +
            `${zero.length ? `, but for ${zero.join(' and ')}, whose gradient is 0` : ''}.`;
    }
    place.append(controls(slider('steps', { min: 0, max: losses.length - 1, step: 1, value: 0,
        text: k => losses[k].step }, value => { column = value; draw(); })), svg, sentence);
    addEventListener('resize', draw);
});

picture('model_memory', place => {
    const points = modelLines('model-memory').filter(words => words.slice(-4).every(word => /^\d+$/.test(word)))
        .map(words => ({ name: words.slice(0, -4).join(' '), numbers: words.slice(-4).map(Number) }));
    const turn = points.findIndex(({ name }) => name === 'loss');
    const RUNS = [{ name: 'kept', at: 0, color: 'var(--ink)', dashes: undefined },
                  { name: 'recomputed', at: 2, color: 'var(--accent)', dashes: '5 3' }];
    const LEFT = 44, RIGHT = 8, TOP = 10, BOTTOM = 24;
    let chosen = turn;
    const sentence = element('p', { id: 'model-memory-text', 'aria-live': 'polite', style: 'min-height: 4.5em' });
    const svg = element('svg', { role: 'img', 'aria-labelledby': 'model-memory-text' });

    function where() {
        const name = points[chosen].name.replace(/^(loss|embeddings)$/, 'the $1');
        return chosen === 0 ? 'Before the step' : chosen <= turn ? `Forward, after ${name}`
            : name === 'reset' ? 'After the reset' : name === 'backward' ? 'After the backward pass'
            : `Backward, after ${name}`;
    }
    function draw() {
        const width = Math.max(place.clientWidth, 260), height = Math.max(230, Math.min(width * 0.45, 330));
        const limit = Math.max(...points.flatMap(({ numbers }) => numbers)) * 1.05;
        const x = i => LEFT + i / points.length * (width - LEFT - RIGHT);
        const y = kib => TOP + (1 - kib / limit) * (height - TOP - BOTTOM);
        const parts = [element('rect', { x: x(chosen), y: TOP, width: x(chosen + 1) - x(chosen),
            height: height - TOP - BOTTOM, style: 'fill: var(--line)' })];
        for (let kib = 0; kib < limit; kib += 400)
            parts.push(element('line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(kib), y2: y(kib) }),
                element('text', { x: LEFT - 5, y: y(kib) + 4, 'text-anchor': 'end' }, String(kib)));
        parts.push(element('line', { x1: x(turn + 1), x2: x(turn + 1), y1: TOP, y2: height - BOTTOM,
            'stroke-dasharray': '2 3', style: 'stroke: var(--soft)' }),
            element('text', { x: x((turn + 1) / 2), y: height - 6, 'text-anchor': 'middle' }, 'forward'),
            element('text', { x: x((turn + 1 + points.length) / 2), y: height - 6, 'text-anchor': 'middle' },
                'backward'));
        for (const { at, color, dashes } of RUNS) {
            // First the peak on the way to a point, then the memory at it.
            const path = points.map(({ numbers }, i) =>
                `${i ? 'L' : 'M'}${x(i)} ${y(numbers[at + 1])}H${x(i + 0.4)}V${y(numbers[at])}H${x(i + 1)}`).join('');
            parts.push(element('path', { d: path, 'stroke-dasharray': dashes,
                style: `stroke: ${color}; stroke-width: 2; fill: none` }));
        }
        svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
        svg.replaceChildren(...parts);
        const [kept, keptPeak, less, lessPeak] = points[chosen].numbers;
        sentence.textContent = `${where()}: ${kept} KiB where all outputs are kept (solid), at most ${keptPeak} ` +
            `since the point before; ${less} KiB with tape_recompute (dashed), at most ${lessPeak}. ` +
            (!points[chosen].name.startsWith('layer') ? '' : chosen < turn
                ? 'With it the layer runs without recording, and its outputs are freed at once.'
                : 'With it the layer is computed again, and its outputs are freed again.');
    }
    place.append(controls(slider('point', { min: 0, max: points.length - 1, step: 1, value: chosen,
        text: i => points[i].name }, value => { chosen = value; draw(); })), svg, sentence);
    addEventListener('resize', draw);
});
