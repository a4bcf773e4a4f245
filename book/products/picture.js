// Two moons: a network with one hidden layer learns in the page, by the formulas of the chapter.
'use strict';

// A matrix is an array of rows. y_ro = sum_i x_ri w_oi + b_o
function linear(x, w, b) {
    return x.map(x_r =>
        w.map((w_o, o) => w_o.reduce((sum, w_oi, i) => sum + x_r[i] * w_oi, b[o])));
}

// dx_ri = sum_o g_ro w_oi: dx = g W
function linear_dx(g, w) {
    return g.map(g_r =>
        w[0].map((_, i) => g_r.reduce((sum, g_ro, o) => sum + g_ro * w[o][i], 0)));
}

// dw_oi = sum_r g_ro x_ri: dW = g^T x
function linear_dw(g, x) {
    return g[0].map((_, o) =>
        x[0].map((_, i) => g.reduce((sum, g_r, r) => sum + g_r[o] * x[r][i], 0)));
}

// db_o = sum_r g_ro
function linear_db(g) {
    return g[0].map((_, o) => g.reduce((sum, g_r) => sum + g_r[o], 0));
}

// p_c = e^(z_c - m) / sum of these; m, the maximum, keeps the exponentials finite.
function probabilities(z_r) {
    const m = Math.max(...z_r), powers = z_r.map(z => Math.exp(z - m));
    const sum = powers.reduce((total, power) => total + power, 0);
    return powers.map(power => power / sum);
}

// Forward: u, v and z, and p of each point.
function network({ w1, b1, w2, b2 }, x) {
    const v = linear(x, w1, b1).map(u_r => u_r.map(Math.tanh));
    return { v, p: linear(v, w2, b2).map(probabilities) };
}

// The loss, and the gradients of all weights: the table of the chapter, from its last line up.
function network_backward(weights, x, targets) {
    const { v, p } = network(weights, x), R = x.length;
    const loss = p.reduce((sum, p_r, r) => sum - Math.log(p_r[targets[r]]), 0) / R;
    const dz = p.map((p_r, r) => p_r.map((p_rc, c) => (p_rc - (c === targets[r])) / R));
    const dv = linear_dx(dz, weights.w2);
    const du = dv.map((dv_r, r) => dv_r.map((dv_ri, i) => dv_ri * (1 - v[r][i] ** 2)));
    const gradients = { w1: linear_dw(du, x), b1: linear_db(du),
        w2: linear_dw(dz, v), b2: linear_db(dz) };
    return { loss, gradients };
}

// Numbers in [0, 1), the same ones for the same seed (mulberry32).
function uniform_numbers(seed) {
    return () => {
        seed = (seed + 0x6D2B79F5) | 0;
        let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
        t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
        return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
    };
}

// Two half circles with noise: examples/two_moons.c, with fewer points.
function two_moons(count) {
    const uniform = uniform_numbers(1), x = [], targets = [];
    const noise = () => // normal, with standard deviation 0.1
        Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()) / 10;
    for (let k = 0; k < count; k++) {
        const angle = Math.PI * k / count, moon = k % 2, sign = moon ? -1 : 1;
        x.push([sign * Math.cos(angle) + moon + noise(),
            sign * Math.sin(angle) + 0.5 * moon + noise()]);
        targets.push(moon);
    }
    return { x, targets };
}

// Uniform in +-1 / sqrt(inputs); biases are 0.
function initial_weights(units) {
    const uniform = uniform_numbers(2);
    const matrix = (O, I) => Array.from({ length: O }, () =>
        Array.from({ length: I }, () => (2 * uniform() - 1) / Math.sqrt(I)));
    return { w1: matrix(units, 2), b1: Array(units).fill(0), w2: matrix(2, units), b2: [0, 0] };
}

// weight - rate gradient, for each element of a vector or a matrix
function moved(weight, gradient, rate) {
    return weight.map((w, k) =>
        Array.isArray(w) ? moved(w, gradient[k], rate) : w - rate * gradient[k]);
}

picture('products', place => {
    const STEPS = 3000, STEPS_PER_FRAME = 4;
    const CELL = 10, COLUMNS = 34, ROWS = 22, SIZE = 0.125; // SIZE: of a cell, in the points' units
    const LEFT = -1.6, TOP = 1.6;
    const { x, targets } = two_moons(120);
    const still = matchMedia('(prefers-reduced-motion: reduce)');
    let units = 16, rate = 1, weights, step, frame = null;

    const svg = element('svg', { viewBox: `0 0 ${COLUMNS * CELL} ${ROWS * CELL}`, role: 'img',
        'aria-labelledby': 'products-sentence', style: 'max-width: 34rem' });
    const sentence = element('p', { id: 'products-sentence', 'aria-live': 'polite',
        style: 'min-height: 4.5em' });
    const run = button('Run', () => frame === null ? start() : stop());
    run.style.minWidth = '5.5rem';

    const middles = []; // of the cells, row by row
    for (let k = 0; k < ROWS * COLUMNS; k++)
        middles.push([LEFT + (k % COLUMNS + 0.5) * SIZE,
            TOP - (Math.floor(k / COLUMNS) + 0.5) * SIZE]);
    const cells = middles.map((_, k) => element('rect', { x: k % COLUMNS * CELL,
        y: Math.floor(k / COLUMNS) * CELL, width: CELL, height: CELL }));
    const boundary = element('path', { class: 'grid',
        style: 'stroke: var(--ink); stroke-width: 2' });
    const marks = x.map(([right, up], r) => {
        const cx = (right - LEFT) / SIZE * CELL, cy = (TOP - up) / SIZE * CELL;
        return targets[r]
            ? element('rect', { x: cx - 3, y: cy - 3, width: 6, height: 6,
                style: 'fill: var(--ink)' })
            : element('circle', { cx, cy, r: 3.2,
                style: 'fill: var(--paper); stroke: var(--ink); stroke-width: 1.3' });
    });
    svg.append(...cells, boundary, ...marks);

    function restart() {
        stop();
        weights = initial_weights(units);
        step = 0;
        draw();
    }
    function train(count) {
        for (let k = 0; k < count && step < STEPS; k++, step++) {
            const { gradients } = network_backward(weights, x, targets);
            for (const name of Object.keys(weights))
                weights[name] = moved(weights[name], gradients[name], rate);
        }
    }
    function start() {
        run.textContent = 'Pause';
        sentence.setAttribute('aria-live', 'off'); // a screen reader hears the end
        frame = requestAnimationFrame(function next() {
            train(STEPS_PER_FRAME);
            frame = requestAnimationFrame(next);
            if (step === STEPS)
                stop();
            draw();
        });
    }
    function stop() {
        if (frame !== null)
            cancelAnimationFrame(frame);
        frame = null;
        run.textContent = 'Run';
        sentence.setAttribute('aria-live', 'polite');
        if (weights)
            draw();
    }
    // Cells in the color of the more probable moon, and lines between cells that differ.
    function drawCells() {
        const squares = network(weights, middles).p.map(p_r => p_r[1]), path = [];
        const differ = (k, l) => squares[k] > 0.5 !== squares[l] > 0.5;
        squares.forEach((p, k) => {
            cells[k].style.fill = p > 0.5 ? 'var(--plus)' : 'var(--minus)';
            cells[k].style.fillOpacity = (0.05 + 0.5 * Math.abs(2 * p - 1)).toFixed(2);
            const column = k % COLUMNS, row = Math.floor(k / COLUMNS);
            if (column > 0 && differ(k, k - 1))
                path.push(`M${column * CELL} ${row * CELL}v${CELL}`);
            if (row > 0 && differ(k, k - COLUMNS))
                path.push(`M${column * CELL} ${row * CELL}h${CELL}`);
        });
        boundary.setAttribute('d', path.join(''));
    }
    function draw() {
        drawCells();
        const { loss } = network_backward(weights, x, targets);
        const right = network(weights, x).p.filter((p_r, r) => p_r[targets[r]] > 0.5).length;
        sentence.textContent = `Step ${step}${step === STEPS ? ', the last' : ''}. ` +
            `${right} of ${x.length} points are on their side of the line. ` +
            `The loss is ${loss.toFixed(4)}` + (loss > Math.LN2
            ? ': guessing is better, with ln 2 = 0.6931.'
            : `, so the right moon has a typical p of e^-loss = ${Math.exp(-loss).toFixed(2)}.`);
        run.disabled = step === STEPS;
        more.disabled = step === STEPS;
    }
    const more = button('100 steps', () => {
        train(100);
        draw();
    });
    const showRun = () => {
        run.hidden = still.matches;
        stop();
    };
    still.addEventListener('change', showRun);
    showRun();
    place.append(controls(run, more, button('Start again', restart)),
        controls(slider('learning rate',
            { min: -5, max: 4, step: 1, value: 0, text: power => String(2 ** power) },
            power => { rate = 2 ** power; }),
        slider('hidden units', { min: 1, max: 32, step: 1, value: units }, value => {
            units = value;
            restart();
        })), svg, sentence);
});
