// A gradient against distance, and the lattice of CTC.
'use strict';

picture('through_time', place => {
    const STEPS = 100, LEFT = 44, RIGHT = 8, TOP = 8, BOTTOM = 34, LOG = [-12, 4];
    let u = 0.9, size = 0, f = 0.99;
    const sentence = element('p', { id: 'through-time-text', 'aria-live': 'polite', style: 'min-height: 4.5em' });
    const svg = element('svg', { role: 'img', 'aria-labelledby': 'through-time-text' });

    // dL/dh_{t-k} of h_t = tanh(x_t + u h_{t-1}), for k from 0; L reads the last h
    function recurrence() {
        const derivatives = [];
        let h = 0;
        for (let t = 1; t <= 2 * STEPS; t++) {
            h = Math.tanh(size * 1.5 * Math.sin(t * t + 1) + u * h);
            derivatives.unshift(u * (1 - h * h));
        }
        const found = [1];
        for (let k = 1; k <= STEPS; k++)
            found.push(found[k - 1] * derivatives[k - 1]);
        return found;
    }
    const cell = () => Array.from({ length: STEPS + 1 }, (_, k) => f ** k);

    function scientific(value) {
        if (value >= 0.01 && value < 1000)
            return Number(value.toPrecision(2)).toString();
        const [digits, power] = value.toExponential(0).split('e');
        return value === 0 ? '0' : `${digits}·10^${Number(power)}`;
    }
    // What a line does between here and k = 100.
    function fate(values) {
        const last = values[STEPS];
        return last < 1e-2 ? 'it vanishes' : last > 1e2 ? 'it explodes' : 'it arrives';
    }
    function draw() {
        const width = Math.max(place.clientWidth, 260), height = Math.max(240, Math.min(width * 0.45, 330));
        const x = k => LEFT + k / STEPS * (width - LEFT - RIGHT);
        const y = e => TOP + (LOG[1] - e) / (LOG[1] - LOG[0]) * (height - TOP - BOTTOM);
        const parts = [];
        for (let k = 0; k <= STEPS; k += 20)
            parts.push(element('line', { class: 'grid', x1: x(k), x2: x(k), y1: TOP, y2: height - BOTTOM }),
                element('text', { x: x(k), y: height - BOTTOM + 14, 'text-anchor': k < STEPS ? 'middle' : 'end' },
                    k));
        for (let e = LOG[0]; e <= LOG[1]; e += 4)
            parts.push(element('line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(e), y2: y(e) }),
                element('text', { x: LEFT - 5, y: y(e) + 4, 'text-anchor': 'end' }, e === 0 ? '1' : '1e' + e));
        parts.push(element('text', { x: x(50), y: height - 4, 'text-anchor': 'middle' }, 'distance k'));
        const lines = [{ values: recurrence(), color: 'var(--plus)', dashes: '6 4' },
                       { values: cell(), color: 'var(--accent)' }];
        for (const { values, color, dashes } of lines) {
            let path = '';
            for (const [k, value] of values.entries()) {
                const e = Math.log10(value);
                if (!(e >= LOG[0] && e <= LOG[1]))
                    break;
                path += `${k ? 'L' : 'M'}${x(k).toFixed(1)} ${y(e).toFixed(1)}`;
            }
            parts.push(element('path', { d: path, fill: 'none', 'stroke-dasharray': dashes,
                style: `stroke: ${color}; stroke-width: 2` }));
        }
        svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
        svg.replaceChildren(...parts);
        const text = values => `${scientific(values[10])} after 10 steps, ${scientific(values[STEPS])} after 100: ` +
            fate(values);
        sentence.replaceChildren(element('strong', {}, 'Plain recurrence'), ` (dashed), u = ${u.toFixed(2)}: ` +
            `the gradient is ${text(lines[0].values)}.`, element('br'), element('strong', {}, 'LSTM, along c'),
            ` (solid), f = ${f.toFixed(2)}: it is ${text(lines[1].values)}.`);
    }
    const two = value => value.toFixed(2);
    place.append(controls(
        slider('weight u', { min: 0.5, max: 1.5, step: 0.05, value: u, text: two },
            value => { u = value; draw(); }),
        slider('size of inputs', { min: 0, max: 1, step: 0.1, value: size, text: value => value.toFixed(1) },
            value => { size = value; draw(); }),
        slider('forget gate f', { min: 0.5, max: 1, step: 0.01, value: f, text: two },
            value => { f = value; draw(); })), svg, sentence);
    addEventListener('resize', draw);
});

picture('lattice', place => {
    const NAMES = ['–', 'a', 'b', 'c'], FRAMES = 6;
    const TARGETS = [{ name: 'a b c', symbols: [1, 2, 3] }, { name: 'a b b', symbols: [1, 2, 2] },
                     { name: 'a a a', symbols: [1, 1, 1] }];
    let target = TARGETS[0], steps = 0;
    const sentence = element('p', { id: 'lattice-text', 'aria-live': 'polite', style: 'min-height: 4.5em' });
    const svg = element('svg', { role: 'img', 'aria-labelledby': 'lattice-text', viewBox: '0 0 360 262',
        style: 'max-width: 24rem; margin: 0 auto' });
    const sum = values => values.reduce((a, b) => a + b, 0);

    function softmax(x) {
        const powers = x.map(value => Math.exp(value));
        return powers.map(value => value / sum(powers));
    }
    const states = () => [0, ...target.symbols.flatMap(symbol => [symbol, 0])];
    // The states that a path in state s may come from.
    function sources(z, s) {
        const mayskip = s >= 2 && z[s] !== 0 && z[s] !== z[s - 2];
        return [s, s - 1, ...mayskip ? [s - 2] : []].filter(before => before >= 0);
    }
    // alpha, beta, p and the posterior of each state
    function compute(y) {
        const z = states(), S = z.length;
        const alpha = [z.map((k, s) => s < 2 ? y[0][k] : 0)];
        for (let t = 1; t < FRAMES; t++)
            alpha.push(z.map((k, s) => y[t][k] * sum(sources(z, s).map(before => alpha[t - 1][before]))));
        const beta = Array.from({ length: FRAMES }, () => Array(S).fill(0));
        beta[FRAMES - 1][S - 1] = beta[FRAMES - 1][S - 2] = 1;
        for (let t = FRAMES - 1; t > 0; t--)
            z.forEach((k, s) => sources(z, s).forEach(before => {
                beta[t - 1][before] += y[t][k] * beta[t][s];
            }));
        const p = alpha[FRAMES - 1][S - 1] + alpha[FRAMES - 1][S - 2];
        return { p, posterior: alpha.map((row, t) => row.map((value, s) => value * beta[t][s] / p)) };
    }
    // The states of the most probable path, and its probability.
    function best_path(y) {
        const z = states(), S = z.length, from = [];
        let best = z.map((k, s) => s < 2 ? y[0][k] : 0);
        for (let t = 1; t < FRAMES; t++) {
            from.push(z.map((_, s) => sources(z, s).reduce((a, b) => best[b] > best[a] ? b : a)));
            best = z.map((k, s) => y[t][k] * best[from[t - 1][s]]);
        }
        const path = [best[S - 1] > best[S - 2] ? S - 1 : S - 2], probability = best[path[0]];
        for (let t = FRAMES - 1; t > 0; t--)
            path.unshift(from[t - 1][path[0]]);
        return { path, probability };
    }
    // Uneven logits, then steps of gradient descent by y - o.
    function probabilities() {
        const x = Array.from({ length: FRAMES }, (_, t) =>
            NAMES.map((_, k) => 0.6 * Math.sin((t + 2 * k) ** 2 + k)));
        for (let step = 0; step < steps; step++) {
            const y = x.map(softmax), { posterior } = compute(y), z = states();
            x.forEach((row, t) => row.forEach((_, k) => {
                row[k] -= y[t][k] - sum(posterior[t].filter((_, s) => z[s] === k));
            }));
        }
        return x.map(softmax);
    }
    function draw() {
        const y = probabilities(), z = states(), { p, posterior } = compute(y), { path, probability } = best_path(y);
        const even = Array.from({ length: FRAMES }, () => NAMES.map(() => 1));
        const count = compute(even), exists = count.posterior.map(row => row.map(value => value > 0));
        const at = (t, s) => [66 + 54 * t, 20 + 34 * s], parts = [];
        for (let t = 1; t < FRAMES; t++)
            z.forEach((_, s) => sources(z, s).forEach(before => {
                if (exists[t][s] && exists[t - 1][before])
                    parts.push(element('path', { class: 'grid', d: `M${at(t - 1, before)}L${at(t, s)}` }));
            }));
        parts.push(element('polyline', { points: path.map((s, t) => at(t, s)).join(' '), fill: 'none',
            style: 'stroke: var(--plus); stroke-width: 2' }));
        z.forEach((symbol, s) => {
            parts.push(element('text', { x: 24, y: at(0, s)[1] + 4, 'text-anchor': 'middle',
                style: 'fill: var(--ink)' }, NAMES[symbol]));
            for (let t = 0; t < FRAMES; t++) {
                const [cx, cy] = at(t, s);
                parts.push(element('circle', { cx, cy, r: 15, class: 'grid',
                    'stroke-dasharray': exists[t][s] ? undefined : '2 3' }));
                parts.push(element('circle', { cx, cy, r: 15 * Math.sqrt(posterior[t][s]),
                    style: 'fill: var(--accent)' }));
            }
        });
        for (let t = 0; t < FRAMES; t++)
            parts.push(element('text', { x: at(t, 0)[0], y: 256, 'text-anchor': 'middle' }, `${t + 1}`));
        svg.replaceChildren(...parts);
        const needed = target.symbols.filter((symbol, j) => symbol === target.symbols[j - 1]).length + 3;
        sentence.textContent = `The target ${target.name} needs ${needed} of the 6 frames, and ${count.p} alignments ` +
            `have this text. After ${steps} steps of gradient descent p is ${p.toPrecision(2)} and the loss ` +
            `${(-Math.log(p)).toFixed(2)}. The most probable alignment, the thick line, is ` +
            `${path.map(s => NAMES[z[s]]).join(' ')}, with ${Math.round(100 * probability / p)} % of p.`;
    }
    const choice = element('select', { change: () => {
        target = TARGETS[choice.selectedIndex];
        draw();
    } }, ...TARGETS.map(({ name }) => element('option', {}, name)));
    place.append(controls(element('label', {}, 'target ', choice),
        slider('gradient steps', { min: 0, max: 30, step: 1, value: steps },
            value => { steps = value; draw(); })), svg, sentence);
});
