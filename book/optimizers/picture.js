// Five optimizers from one point in a bowl; the formulas are the chapter's, in double.
'use strict';

picture('optimizers', (place, figure) => {
    const CURVATURES = [1, 25], START = [4, 1], BETA2 = 0.999, EPS = 1e-8;
    const WIDE = 5, HIGH = 1.5; // the picture shows [-WIDE, WIDE] x [-HIGH, HIGH]

    // Each gives the step of both weights from their gradients; s keeps m and v, and t counts from 1.
    const average = (s, g, key, beta) => (s[key] = s[key].map((old, i) => beta * old + (1 - beta) * g[i]));
    const adam = (s, g, beta, t) => {
        const m = average(s, g, 'm', beta), v = average(s, g.map(x => x * x), 'v', BETA2);
        const m_hat = m.map(x => x / (1 - beta ** t));
        return { m_hat, step: m_hat.map((x, i) => x / (Math.sqrt(v[i] / (1 - BETA2 ** t)) + EPS)) };
    };
    const rho = t => 2 / (1 - BETA2) - 1 - 2 * t * BETA2 ** t / (1 - BETA2 ** t);
    const variance = r => r / (2 * (r - 2) * (r - 4));
    const polynomial = s => 3.4445 * s - 4.775 * s ** 3 + 2.0315 * s ** 5;
    const METHODS = [
        { name: 'SGD', dash: '', mark: 'circle', color: '--ink', step: (s, g) => g },
        { name: 'momentum', dash: '9 4', mark: 'square', color: '--accent',
            step: (s, g, beta) => (s.m = s.m.map((old, i) => beta * old + g[i])) },
        { name: 'Adam', dash: '2 3', mark: 'triangle', color: '--bad', step: (s, g, beta, t) => adam(s, g, beta, t).step },
        { name: 'RAdam', dash: '10 3 2 3', mark: 'cross', color: '--soft', step: (s, g, beta, t) => {
            const { m_hat, step } = adam(s, g, beta, t);
            const r = rho(t) > 5 ? Math.sqrt(variance(2 / (1 - BETA2) - 1) / variance(rho(t))) : 0;
            return r ? step.map(x => r * x) : m_hat;
        } },
        { name: 'Muon', dash: '5 2 1 2 1 2', mark: 'diamond', color: '--good', step: (s, g, beta) => {
            let x = average(s, g, 'm', beta);
            const norm = Math.max(Math.hypot(...x), 1e-30);
            x = x.map(element => element / norm);
            for (let i = 0; i < 5; i++)
                x = x.map(polynomial);
            return x;
        } },
    ];
    METHODS.forEach(method => { method.shown = true; });
    let rate = 0.07, beta = 0.5, steps = 30;

    function path(method) {
        const state = { m: [0, 0], v: [0, 0] }, points = [START];
        for (let t = 1; t <= steps; t++) {
            const p = points[t - 1], step = method.step(state, p.map((x, i) => CURVATURES[i] * x), beta, t);
            points.push(p.map((x, i) => x - rate * step[i]));
        }
        return points;
    }

    const id = 'optimizers-' + Math.random().toString(36).slice(2);
    const svg = element('svg', { role: 'img', 'aria-labelledby': id });
    const sentence = element('p', { id, 'aria-live': 'polite' });
    const MARKS = {
        circle: 'M4 0A4 4 0 1 1 -4 0A4 4 0 1 1 4 0Z', square: 'M-4 -4H4V4H-4Z', triangle: 'M0 -5L5 4H-5Z',
        cross: 'M-4 -4L4 4M4 -4L-4 4', diamond: 'M0 -6L5 0L0 6L-5 0Z',
    };
    const line = (method, d) => element('path', { d, fill: 'none', 'stroke-dasharray': method.dash,
        'stroke-linejoin': 'round', style: `stroke: var(${method.color}); stroke-width: 1.8` });
    const mark = (method, x, y) => element('path', { d: MARKS[method.mark], transform: `translate(${x} ${y})`,
        style: `fill: var(--paper); stroke: var(${method.color}); stroke-width: 2` });

    // Labels at the right edge, in the order of the paths' ends, at least 16 apart.
    function labels(ends, width, height) {
        const sorted = [...ends].sort((a, b) => a.y - b.y);
        let below = 14;
        sorted.forEach((end, i) => {
            end.at = Math.min(Math.max(below, end.y), height - 8 - 16 * (sorted.length - 1 - i));
            below = end.at + 16;
        });
        return sorted.map(({ method, x, y, at }) => element('g', {},
            element('path', { d: `M${x + 6} ${y}L${width - 76} ${at - 4}`, fill: 'none',
                'stroke-dasharray': '1 3', style: 'stroke: var(--soft)' }),
            element('text', { x: width - 72, y: at, style: 'fill: var(--ink)' }, method.name)));
    }
    function draw() {
        const width = Math.max(svg.clientWidth || 640, 240), plot = width - 84, unit = plot / (2 * WIDE);
        const height = 2 * HIGH * 2 * unit, X = x => (x + WIDE) * unit, Y = y => (HIGH - y) * 2 * unit;
        const limit = (x, most) => Math.max(-most, Math.min(most, x));
        const leaves = ([x, y]) => !(Math.abs(x) <= WIDE && Math.abs(y) <= HIGH);
        svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
        const contours = [0.1, 0.5, 1.5, 4, 8, 14, 22].map(L => {
            const a = Math.sqrt(2 * L) * unit, b = Math.sqrt(2 * L / 25) * 2 * unit;
            return element('path', { class: 'grid', d: `M${X(0) + a} ${Y(0)}A${a} ${b} 0 1 1 ${X(0) - a} ${Y(0)}` +
                `A${a} ${b} 0 1 1 ${X(0) + a} ${Y(0)}` });
        });
        const drawn = METHODS.filter(method => method.shown).map(method => {
            const points = path(method), isOutside = leaves(points[steps]);
            const distance = Math.hypot(...points[steps]);
            if (isOutside) // its line ends where it left
                points.length = points.findIndex(leaves) + 1;
            const [x, y] = points[points.length - 1];
            const at = point => `${X(limit(point[0], 100)).toFixed(1)} ${Y(limit(point[1], 100)).toFixed(1)}`;
            return { method, isOutside, distance, x: X(limit(x, WIDE)), y: Y(limit(y, HIGH)),
                d: 'M' + points.map(at).join('L') };
        });
        svg.replaceChildren(...contours,
            element('text', { x: X(0) + 8, y: height - 6 }, 'p1'), element('text', { x: 2, y: Y(0) - 6 }, 'p2 = 0'),
            ...drawn.map(({ method, d }) => line(method, d)), ...labels(drawn, width, height),
            ...drawn.map(({ method, x, y }) => mark(method, x, y)));
        const number = x => x > 1e6 ? x.toExponential(0) : x > 99 ? x.toFixed(0) :
            x < 1e-3 ? x.toExponential(1) : x.toPrecision(2);
        sentence.textContent = drawn.length === 0 ? 'Choose a method.' :
            `After ${steps} steps at the rate ${rate.toFixed(3)} the distance to the minimum is ` + drawn.map(
                ({ method, isOutside, distance }) => `${number(distance)} for ${method.name}` +
                    (isOutside ? ' (outside the picture)' : '')).join(', ') + '. It was 4.1 at the start.';
        if (rate >= 0.08 && METHODS[0].shown)
            sentence.textContent += ` For SGD ${rate.toFixed(3)} is not below 2 / 25 = 0.08.`;
        figure.dataset.distances = JSON.stringify(drawn.map(({ method, distance }) => [method.name, distance]));
    }
    const choices = METHODS.map(method => {
        const box = element('input', { type: 'checkbox', checked: true, change: () => {
            method.shown = box.checked;
            draw();
        } });
        const sample = element('svg', { viewBox: '0 0 44 14', width: 44, height: 14, 'aria-hidden': true,
            style: 'width: 44px; height: 14px' }, line(method, 'M0 7H44'), mark(method, 36, 7));
        return element('label', {}, box, sample, ' ' + method.name);
    });
    place.append(controls(...choices),
        controls(
            slider('learning rate', { min: 0.005, max: 0.15, step: 0.005, value: rate, text: v => v.toFixed(3) },
                value => { rate = value; draw(); }),
            slider('beta', { min: 0, max: 0.98, step: 0.01, value: beta, text: v => v.toFixed(2) },
                value => { beta = value; draw(); }),
            slider('steps', { min: 0, max: 200, step: 1, value: steps }, value => { steps = value; draw(); })),
        svg, sentence);
    if (typeof ResizeObserver !== 'undefined')
        new ResizeObserver(draw).observe(place);
    draw();
});
