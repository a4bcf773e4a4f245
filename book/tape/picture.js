// The tape of x e^x, visited backwards one entry at a time.
'use strict';

picture('tape', (place, figure) => {
    const NAMES = ['x', 'y = e^x', 'L = x y'];
    let x = 1, visited = 0; // how many entries the pass has visited, from the last one on
    const graph = element('svg', { viewBox: '0 0 330 124', 'aria-hidden': 'true', class: 'graph',
        style: 'max-width: 32rem' });
    const table = element('table', { class: 'numbers' });
    const sentence = element('p', { 'aria-live': 'polite', style: 'min-height: 3em' });
    const back = button('Visit the next entry', () => step(1));
    const again = button('Start again', () => step(-visited));

    // The values, and the gradients after this many visits: null where nothing has contributed.
    function state() {
        const y = Math.exp(x), gradients = [null, null, 1];
        if (visited >= 1) {
            gradients[0] = y;
            gradients[1] = x;
        }
        if (visited >= 2)
            gradients[0] += x * y;
        return { values: [x, y, x * y], gradients };
    }
    const SENTENCES = [
        () => 'L is the last entry, and dL/dL = 1. Nothing else has a gradient yet.',
        ({ values, gradients }) => `Visited L = x y: dL/dx gets y = ${show(values[1])}, and dL/dy gets ` +
            `x = ${show(gradients[1])}. The first contribution to x stores. Nothing reads L any more.`,
        ({ values, gradients }) => `Visited y = e^x: dL/dx gets dL/dy e^x = ` +
            `${show(x * values[1])} more, the second contribution. ` +
            `dL/dx = ${show(gradients[0])}. y and its gradient are freed.`,
        ({ gradients }) => `Visited x: it is an input, and reads nothing. The pass has ended: ` +
            `dL/dx = (1 + x) e^x = ${show(gradients[0])}.`,
    ];
    const show = number => number.toFixed(4);

    function step(by) {
        visited += by;
        draw();
    }
    // Boxes of x, y and L, and an arrow from each entry to what reads it, with its contribution.
    function drawGraph() {
        const at = [[42, 100], [165, 22], [288, 100]];
        const arrows = [[0, 1, 'dL/dy e^x', 'end'], [1, 2, 'x', 'start'], [0, 2, 'y', 'middle']];
        const beside = { start: 3, middle: 0, end: -3 };
        graph.replaceChildren(...arrows.map(([from, to, contribution, anchor]) => {
            const [x1, y1] = at[from], [x2, y2] = at[to], isDone = 2 - visited < to;
            return element('g', { class: isDone ? 'done' : '' },
                element('path', { class: 'arrow', d: `M${x1 + 38} ${y1}L${x2 - 40} ${y2}` }),
                element('circle', { class: 'head', cx: x2 - 40, cy: y2, r: 3 }),
                element('text', { x: (x1 + x2) / 2 + beside[anchor], y: (y1 + y2) / 2 - 6, 'text-anchor': anchor },
                    isDone ? contribution : ''));
        }), ...NAMES.map((name, i) => element('g', { class: 2 - visited === i ? 'now' : '' },
            element('rect', { x: at[i][0] - 38, y: at[i][1] - 16, width: 76, height: 32, rx: 5 }),
            element('text', { x: at[i][0], y: at[i][1] + 4, 'text-anchor': 'middle' }, name))));
    }
    function draw() {
        const { values, gradients } = state();
        drawGraph();
        back.disabled = visited === 3;
        table.replaceChildren(
            element('caption', { class: 'hidden' }, 'The tape: entries, values and gradients'),
            element('tr', {}, ...['entry', 'value', 'gradient', ''].map(name => element('th', { scope: 'col' }, name))),
            ...NAMES.map((name, i) => {
                const isNext = 2 - visited === i, isFreed = i === 1 && visited >= 2;
                return element('tr', { class: isNext ? 'now' : '' },
                    element('th', { scope: 'row' }, name),
                    element('td', {}, isFreed ? 'freed' : show(values[i])),
                    element('td', {}, isFreed ? 'freed' : gradients[i] === null ? 'empty' : show(gradients[i])),
                    element('td', {}, isNext ? 'next' : i > 2 - visited ? 'visited' : ''));
            }));
        sentence.textContent = SENTENCES[visited]({ values, gradients });
    }
    place.append(controls(back, again, slider('x', { min: -2, max: 2, step: 0.1, value: 1, text: v => v.toFixed(1) },
        value => { x = value; draw(); })), graph,
        element('div', { class: 'scroll' }, table), sentence);
    draw();
});
