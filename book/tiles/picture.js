// The square of scores in tiles: which tile is in memory, and m and l of one row.
'use strict';

picture('tiles', place => {
    const N = 12, CELL = 22, LEFT = 30, TOP = 18;
    const BARS_TOP = TOP + N * CELL + 12, BARS = 52, L_TOP = BARS_TOP + BARS + 46, WIDTH = LEFT + N * CELL + 6;
    // Scores with one decimal, the same ones at each visit. Query i and key j <= i.
    const SCORES = Array.from({ length: N }, (_, i) => Array.from({ length: N }, (_, j) => {
        const wave = 1.6 * Math.sin(1.7 * i + 2.3 * j + 1) + 1.2 * Math.sin(0.9 * i * j + j) + 0.12 * j;
        return Math.round(10 * wave) / 10;
    }));
    let size = 3, row = N - 1, visited = 0; // visited: how many tiles of this row's tiles
    const sentence = element('p', { id: 'tiles-text', 'aria-live': 'polite', style: 'min-height: 6em' });
    const svg = element('svg', { viewBox: `0 0 ${WIDTH} ${L_TOP + 22}`, role: 'img', 'aria-labelledby': 'tiles-text',
                                 style: 'max-width: 27rem; margin: 0 auto' });

    const show = (value, digits = 3) => value.toFixed(digits).replace('-', '\u2212');
    const band = () => Math.floor(row / size); // the row of tiles
    const keysOf = tile => SCORES[row].slice(tile * size, Math.min((tile + 1) * size, row + 1));
    const sumOf = (keys, m) => keys.reduce((sum, s) => sum + Math.exp(s - m), 0);

    // m, l and the last step of the row, after the tiles that were visited
    function state() {
        let m = -Infinity, l = 0, step = null;
        for (let tile = 0; tile < visited; tile++) {
            const keys = keysOf(tile), larger = Math.max(m, ...keys);
            step = { keys, m, l, factor: Math.exp(m - larger), added: sumOf(keys, larger) };
            m = larger;
            l = step.factor * l + step.added;
        }
        return { m, l, step };
    }

    // ------------------------------------------------------------------------------- the drawing
    const x = j => LEFT + CELL * j, y = i => TOP + CELL * i;
    function text(at, top, content, { anchor = 'middle', color = 'var(--soft)' } = {}) {
        return element('text', { x: at, y: top, 'text-anchor': anchor, style: `fill: ${color}` }, content);
    }
    function rectangle(left, top, width, height, style) {
        return element('rect', { x: left, y: top, width, height, style });
    }
    function cells(query, key) { // of the tile in memory
        const made = [];
        for (let i = query * size; i < (query + 1) * size; i++)
            for (let j = key * size; j < (key + 1) * size && j <= i; j++) {
                const s = SCORES[i][j], color = s < 0 ? 'var(--minus)' : 'var(--plus)';
                made.push(rectangle(x(j) + 1, y(i) + 1, CELL - 2, CELL - 2,
                    `fill: ${color}; fill-opacity: ${0.15 + 0.2 * Math.min(Math.abs(s), 3.5)}`));
            }
        return made;
    }
    function tile(query, key) {
        const left = x(key * size), top = y(query * size), side = size * CELL;
        const isNow = query === band() && key === visited - 1;
        const isDone = query < band() || (query === band() && key < visited - 1);
        const fill = isDone && key <= query ? 'fill: var(--soft); fill-opacity: 0.35' : 'fill: none';
        const made = [rectangle(left, top, side, side, `${fill}; stroke: var(--line)`)];
        if (key > query)
            made.push(element('path', { d: `M${left + 8} ${top + 8}l${side - 16} ${side - 16}` +
                `m0 ${16 - side}l${16 - side} ${side - 16}`, fill: 'none', stroke: 'var(--soft)' }));
        if (isNow)
            made.push(...cells(query, key),
                rectangle(left, top, side, side, 'fill: none; stroke: var(--accent); stroke-width: 2.5'));
        return made;
    }
    function square() {
        const made = [text(x(N / 2), 11, 'keys j'), text(LEFT - 5, y(0) - 7, 'row', { anchor: 'end' })];
        const tiles = N / size;
        for (let query = 0; query < tiles; query++)
            for (let key = 0; key < tiles; key++)
                made.push(...tile(query, key));
        made.push(element('path', { d: `M${x(0)} ${y(0)}l${N * CELL} ${N * CELL}`, fill: 'none',
            stroke: 'var(--soft)', 'stroke-dasharray': '3 3' }));
        const frame = 'fill: none; stroke: var(--ink); stroke-width: 1.5';
        made.push(rectangle(x(0), y(row), (row + 1) * CELL, CELL, frame),
            text(LEFT - 5, y(row) + 15, `${row + 1}`, { anchor: 'end', color: 'var(--ink)' }));
        return made;
    }
    // The terms e^(s - m) of the keys so far, below their columns
    function terms({ m }) {
        const made = [element('path', { class: 'grid', d: `M${x(0)} ${BARS_TOP + BARS}h${N * CELL}` }),
            element('path', { class: 'grid', d: `M${x(0)} ${BARS_TOP}h${N * CELL}` }),
            text(LEFT - 5, BARS_TOP + 5, '1', { anchor: 'end' }),
            text(LEFT - 5, BARS_TOP + BARS + 4, '0', { anchor: 'end' })];
        for (let j = 0; j < Math.min(visited * size, row + 1); j++) {
            const height = BARS * Math.exp(SCORES[row][j] - m), isNew = j >= (visited - 1) * size;
            made.push(rectangle(x(j) + 4, BARS_TOP + BARS - height, CELL - 8, height,
                `fill: ${isNew ? 'var(--accent)' : 'var(--soft)'}`));
        }
        return made;
    }
    // l as a bar: what is left of the old one, and what the tile adds
    function sum({ m, l, step }) {
        const unit = N * CELL / 4, made = [text(LEFT - 5, L_TOP + 12, 'l', { anchor: 'end' })];
        made.push(text(x(0), L_TOP - 24, step ? `m = max(${step.l ? show(step.m, 1) : '\u2212\u221e'}, ` +
            `${show(Math.max(...step.keys), 1)}) = ${show(m, 1)}, factor ${show(step.factor)}` : 'm = \u2212\u221e',
            { anchor: 'start', color: 'var(--ink)' }));
        const terms = step && `${show(step.factor)} \u00b7 ${show(step.l)} + ${show(step.added)} = `;
        made.push(text(x(0), L_TOP - 8, `l = ${terms ?? ''}${step ? show(l) : 0}`,
            { anchor: 'start', color: 'var(--ink)' }));
        made.push(rectangle(x(0), L_TOP, N * CELL, 16, 'fill: none; stroke: var(--line)'));
        if (step) {
            const kept = step.factor * step.l * unit;
            made.push(rectangle(x(0), L_TOP, kept, 16, 'fill: var(--soft)'),
                rectangle(x(0) + kept, L_TOP, step.added * unit, 16, 'fill: var(--accent)'));
        }
        return made;
    }

    // ------------------------------------------------------------------------------ the sentence
    function describe({ m, l, step }) {
        const all = band() + 1, keys = keysOf(visited - 1);
        if (!step)
            return `Row ${row + 1}, before the first of its ${all} tile${all > 1 ? 's' : ''}: m is minus infinity, ` +
                'and l is 0.';
        const list = keys.map(s => show(s, 1)).join(', ');
        const correction = visited === 1 ? 'It is the first tile, so there is nothing to correct: the factor is 0.'
            : step.factor < 1 ? `The maximum grows from ${show(step.m, 1)} to ${show(m, 1)}, so l and o are ` +
                `multiplied by e^(${show(step.m, 1)} \u2212 ${show(m, 1)}) = ${show(step.factor)}.`
            : `None exceeds m = ${show(m, 1)}, so the factor is 1.`;
        const scores = keys.length > 1 ? 'scores' : 'score';
        const end = visited < all ? '' : ' The row is complete, and out = o / l. ' +
            `m and 1 / l = ${show(1 / l)} are saved.` +
            (all < N / size ? ' The tiles at the right are skipped.' : '');
        return `Row ${row + 1}, tile ${visited} of ${all}: ${scores} ${list}. ${correction} ` +
            `Now m = ${show(m, 1)} and l = ${show(l)}.${end}`;
    }
    function draw() {
        const now = state();
        svg.replaceChildren(...square(), ...terms(now), ...sum(now));
        sentence.textContent = describe(now);
        next.disabled = visited === band() + 1 && band() === N / size - 1;
    }

    // ------------------------------------------------------------------------------ the controls
    const next = button('Next tile', () => {
        if (visited <= band()) {
            visited++;
            draw();
        } else {
            choose(row + size);
            visited = 1;
            draw();
        }
    });
    const again = button('Start again', () => {
        visited = 0;
        draw();
    });
    const rows = slider('row', { min: 1, max: N, step: 1, value: row + 1 }, value => {
        row = value - 1;
        visited = 0;
        draw();
    });
    function choose(value) { // moves the slider, too
        const input = rows.querySelector('input');
        input.value = value + 1;
        input.dispatchEvent(new Event('input'));
    }
    const sizes = element('select', { change: () => {
        size = Number(sizes.value);
        visited = 0;
        draw();
    } }, ...[3, 4].map(value => element('option', { value }, `${value} x ${value}`)));
    place.append(controls(next, again), controls(rows, element('label', {}, 'tiles ', sizes)), svg, sentence);
});
