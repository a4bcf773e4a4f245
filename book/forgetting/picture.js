// A memory of eight writes, the sixth of them to the second one's key: a sum, a decay, the delta rule.
'use strict';

picture('forgetting', place => {
    const WIDTH = 340, ROW = 22, TOP = 24, CELL = 9, BARS = 122, BAR = 70, UNIT = 11, STATE = 15;
    const NAMES = 'ABCDEBFG', AGAIN = 5, FIRST = 1; // which writes have the same key
    const VALUES = [[2, -1, 1], [-2, 1, 1], [1, 2, -1], [-1, -2, 2], [1, 1, 2], [2, -2, -1], [-1, 1, -2], [2, 1, 1]];
    const M = 3;
    let rule = 'sum', kind = 'random8', position = 6, decay = 0.8, beta = 1;

    const dot = (a, b) => a.reduce((sum, x, c) => sum + x * b[c], 0);
    const show = x => (Math.abs(x) < 0.05 ? 0 : x).toFixed(1).replace('-', '−');
    const list = v => `(${v.map(show).join(', ')})`;

    // Unit vectors, or rows of sums of uniform numbers, nearly normal, of length 1
    function make_keys() {
        const D = kind === 'random4' ? 4 : 8;
        let seed = 14;
        const uniform = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32;
        const keys = [...NAMES].map((_, i) => {
            const row = Array.from({ length: D }, (_, d) => kind === 'orthogonal' ? Number(d === i)
                : Array.from({ length: 12 }, uniform).reduce((a, b) => a + b) - 6);
            const length = Math.hypot(...row);
            return row.map(x => x / length);
        });
        keys[AGAIN] = keys[FIRST];
        return keys;
    }
    const answer = (S, k) => VALUES[0].map((_, m) => k.reduce((sum, x, d) => sum + x * S[d][m], 0));

    // The state before position i, what the position adds, and the state after it
    function run(keys) {
        let S = keys[0].map(() => [0, 0, 0]), states;
        for (let i = 0; i < position; i++) {
            const factor = rule === 'decay' ? decay : 1, before = S, old = answer(S, keys[i]);
            const u = VALUES[i].map((v, m) => rule === 'delta' ? beta * (v - old[m]) : v);
            const added = keys[i].map(x => u.map(y => x * y));
            S = before.map((row, d) => row.map((x, m) => factor * x + added[d][m]));
            states = { before: before.map(row => row.map(x => factor * x)), added, after: S, u, old };
        }
        return states;
    }

    // A number as a square around a point: its area is the size, 1 for the largest
    function cell(x, y, size, value, largest) {
        const side = size * Math.sqrt(Math.min(1, Math.abs(value) / largest)), full = value > 0;
        const edge = full ? 0 : Math.min(1.5, side / 2), inner = Math.max(0, side - edge);
        return inner < 0.3 ? '' : element('rect', { x: x - inner / 2, y: y - inner / 2, width: inner, height: inner,
            style: full ? 'fill: var(--plus)' : `fill: none; stroke: var(--minus); stroke-width: ${edge}` });
    }
    function text(x, y, words, anchor = 'start', style = '') {
        return element('text', { x, y, 'text-anchor': anchor, style }, words);
    }

    // A write's key and, once it is written, the memory's answer to it beside the right value
    function draw_row(i, key, S) {
        const y = TOP + ROW * (i + 0.5), written = i < position, lost = i === FIRST && position > AGAIN;
        const row = element('g', {}, text(0, y + 4, `${i + 1} ${NAMES[i]}`, 'start',
            (written ? 'fill: var(--ink);' : '') + (lost ? 'text-decoration: line-through;' : '')));
        if (i === position - 1 || (lost && position - 1 === AGAIN))
            row.append(element('rect', { x: -3, y: y - ROW / 2 + 1, width: WIDTH + 6, height: ROW - 2, rx: 3,
                style: `fill: none; stroke: var(--accent); ${lost && i === FIRST ? 'stroke-dasharray: 4 3' : ''}` }));
        key.forEach((x, d) => row.append(cell(36 + CELL * d + CELL / 2, y, CELL - 1, x, 1)));
        answer(S, key).forEach((x, m) => {
            const zero = BARS + BAR * (m + 0.5), limited = Math.max(-3, Math.min(3, x)), v = VALUES[i][m];
            row.append(element('path', { class: 'grid', d: `M${zero} ${y - 9}V${y + 9}` }));
            if (!written)
                return;
            row.append(element('rect', { x: zero + UNIT * Math.min(0, limited), y: y - 4, height: 8,
                width: UNIT * Math.abs(limited), style: 'fill: var(--soft)' }));
            row.append(element('path', { d: `M${zero + UNIT * v} ${y - 8}V${y + 8}`,
                style: `stroke: var(--accent); stroke-width: 3; ${lost ? 'stroke-dasharray: 2 2' : ''}` }));
        });
        return row;
    }
    function draw_state(x, y, S, largest, label) {
        const height = STATE * S.length, g = element('g', {}, text(x, y - 6, label));
        g.append(element('rect', { x, y, width: STATE * M, height, style: 'fill: none; stroke: var(--line)' }));
        S.forEach((row, d) => row.forEach((value, m) =>
            g.append(cell(x + STATE * (m + 0.5), y + STATE * (d + 0.5), STATE - 2, value, largest))));
        return g;
    }

    const sentence = element('p', { id: 'forgetting-sentence', 'aria-live': 'polite', style: 'min-height: 6em' });
    const svg = element('svg', { role: 'img', 'aria-labelledby': 'forgetting-sentence',
        style: 'max-width: 32rem; margin: 0 auto' });

    function describe(keys, states) {
        const i = position - 1, after = answer(states.after, keys[i]);
        let errors = 0, size = 0;
        for (let j = 0; j < position; j++) {
            if (j === FIRST && position > AGAIN)
                continue; // overwritten
            answer(states.after, keys[j]).forEach((x, m) => {
                errors += (x - VALUES[j][m]) ** 2;
                size += VALUES[j][m] ** 2;
            });
        }
        const again = i === AGAIN ? ` again, which had ${list(VALUES[FIRST])},` : '';
        const adds = rule === 'delta'
            ? ` The memory answered ${list(states.old)}, so beta times the difference is added, ${list(states.u)}.`
            : rule === 'decay' ? ` All that was stored is first multiplied by ${decay.toFixed(2)}.` : '';
        return `Position ${position} writes ${list(VALUES[i])} under key ${NAMES[i]}${again}.`.replace(',.', '.') +
            `${adds} Now key ${NAMES[i]} is answered by ${list(after)}. ` +
            `Over all keys so far, the error is ${Math.round(100 * Math.sqrt(errors / size))} % of the values.`;
    }
    function draw() {
        const keys = make_keys(), states = run(keys), below = TOP + ROW * NAMES.length + 30;
        const { before, added, after } = states;
        const largest = Math.max(...[before, added, after].flat(2).map(Math.abs));
        const middle = below + STATE * keys[0].length / 2 + 5;
        svg.setAttribute('viewBox', `-4 0 ${WIDTH + 8} ${below + STATE * keys[0].length + 4}`);
        svg.replaceChildren(text(0, 14, 'write'), text(52, 14, 'key'),
            ...VALUES[0].map((_, m) => text(BARS + BAR * (m + 0.5), 14, `answer ${m + 1}`, 'middle')),
            ...keys.map((key, i) => draw_row(i, key, after)),
            draw_state(36, below, before, largest, rule === 'decay' ? 'S, decayed' : 'S before'),
            text(110, middle, '+', 'middle', 'font-size: 18px'),
            draw_state(140, below, added, largest, rule === 'delta' ? 'k times u' : 'k times v'),
            text(214, middle, '=', 'middle', 'font-size: 18px'),
            draw_state(244, below, after, largest, 'S after'));
        sentence.textContent = describe(keys, states);
    }

    function choice(label, options, chosen, changed) {
        const select = element('select', { change: () => { changed(select.value); draw(); } },
            ...options.map(([value, words]) => element('option', { value, selected: value === chosen }, words)));
        return element('label', {}, label + ' ', select);
    }
    const strength = {
        decay: slider('decay e^l', { min: 0.5, max: 1, step: 0.05, value: decay, text: x => x.toFixed(2) },
            value => { decay = value; draw(); }),
        delta: slider('beta', { min: 0, max: 2, step: 0.1, value: beta, text: x => x.toFixed(1) },
            value => { beta = value; draw(); }),
    };
    const show_strength = () => {
        for (const name in strength)
            strength[name].style.display = name === rule ? '' : 'none';
    };
    show_strength();
    place.append(
        controls(
            choice('rule', [['sum', 'sum'], ['decay', 'decay'], ['delta', 'delta rule']], rule,
                value => { rule = value; show_strength(); }),
            choice('keys', [['random8', 'random, D = 8'], ['random4', 'random, D = 4'], ['orthogonal', 'orthogonal']],
                kind, value => { kind = value; }),
            slider('position', { min: 1, max: 8, step: 1, value: position },
                value => { position = value; draw(); }),
            strength.decay, strength.delta),
        svg, sentence);
});
