// Two pictures: the error of a difference against h, and the numbers of five planted faults.
'use strict';

// The hyphen does not break lines.
const scientific = number => number.toExponential(1).replace('-', '\u2011');

picture('checking', place => {
    const E = Math.E;
    // f at 1, each operation rounded; the values of |f|, f' and |f'''| there
    const FUNCTIONS = [
        { name: 'x e^x', f: (x, round) => round(x * round(Math.exp(x))), value: E, first: 2 * E, third: 4 * E },
        { name: '1000 + x e^x', f: (x, round) => round(1000 + round(x * round(Math.exp(x)))),
          value: 1000 + E, first: 2 * E, third: 4 * E },
        { name: 'e^(8 x - 7)', f: (x, round) => round(Math.exp(round(round(8 * x) - 7))),
          value: E, first: 8 * E, third: 512 * E },
    ];
    const FORMATS = [
        { name: 'float', epsilon: 2 ** -23, round: Math.fround, color: 'var(--ink)' },
        { name: 'double', epsilon: 2 ** -52, round: x => x, color: 'var(--accent)' },
    ];
    const LEFT = 44, RIGHT = 8, TOP = 8, BOTTOM = 34, H = [-15, 0], ERROR = [-13, 2];
    let chosen = FUNCTIONS[0], exponent = -6;
    const sentence = element('p', { id: 'checking-text', 'aria-live': 'polite', style: 'min-height: 7.5em' });
    const svg = element('svg', { role: 'img', 'aria-labelledby': 'checking-text' });

    // The error of the central difference, or null where x + h and x - h are the same number.
    function error({ round }, h) {
        const right = round(1 + h), left = round(1 - h);
        const rise = round(chosen.f(right, round) - chosen.f(left, round));
        return right === left ? null : Math.abs(round(rise / round(right - left)) - chosen.first);
    }
    const truncation = h => h * h * chosen.third / 6;
    const rounding = ({ epsilon }, h) => epsilon * chosen.value / h;
    const best = ({ epsilon }) => Math.cbrt(3 * epsilon * chosen.value / chosen.third);

    function draw() {
        const width = Math.max(place.clientWidth, 260), height = Math.max(250, Math.min(width * 0.5, 360));
        const x = e => LEFT + (e - H[0]) / (H[1] - H[0]) * (width - LEFT - RIGHT);
        const y = value => {
            const e = Math.max(ERROR[0], Math.log10(value)); // an error of 0 is drawn at the bottom
            return TOP + (ERROR[1] - e) / (ERROR[1] - ERROR[0]) * (height - TOP - BOTTOM);
        };
        const parts = [];
        for (let e = H[0]; e <= H[1]; e += 3)
            parts.push(element('line', { class: 'grid', x1: x(e), x2: x(e), y1: TOP, y2: height - BOTTOM }),
                element('text', { x: x(e), y: height - BOTTOM + 14, 'text-anchor': e ? 'middle' : 'end' }, '1e' + e));
        for (let e = -12; e <= ERROR[1]; e += 3)
            parts.push(element('line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(10 ** e), y2: y(10 ** e) }),
                element('text', { x: LEFT - 5, y: y(10 ** e) + 4, 'text-anchor': 'end' }, '1e' + e));
        parts.push(element('text', { x: x(-7.5), y: height - 4, 'text-anchor': 'middle' }, 'h'),
            element('line', { x1: x(exponent), x2: x(exponent), y1: TOP, y2: height - BOTTOM,
                stroke: 'var(--soft)', 'stroke-width': 1 }));
        for (const format of FORMATS) {
            let path = '', bound = '', isDrawn = false;
            for (let e = H[0]; e <= H[1]; e += 0.125) {
                const found = error(format, 10 ** e), fits = found !== null && found <= 10 ** ERROR[1];
                const sum = truncation(10 ** e) + rounding(format, 10 ** e);
                if (fits)
                    path += `${isDrawn ? 'L' : 'M'}${x(e).toFixed(1)} ${y(found).toFixed(1)}`;
                isDrawn = fits;
                if (sum <= 10 ** ERROR[1])
                    bound += `${bound ? 'L' : 'M'}${x(e).toFixed(1)} ${y(sum).toFixed(1)}`;
            }
            const labelled = Math.log10(rounding(format, 1)) + 1.2; // the bound is 0.06 at this h
            parts.push(
                element('path', { d: bound, fill: 'none', stroke: format.color, 'stroke-dasharray': '5 4' }),
                element('path', { d: path, fill: 'none', stroke: format.color, 'stroke-width': 2,
                    'stroke-linejoin': 'round' }),
                element('text', { x: x(labelled) + 8, y: y(10 ** -1.2) - 6, style: `fill: ${format.color}` },
                    format.name));
            const now = error(format, 10 ** exponent);
            if (now !== null && now <= 10 ** ERROR[1])
                parts.push(element('circle', { cx: x(exponent), cy: y(now), r: 4.5, fill: format.color }));
        }
        svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
        svg.replaceChildren(...parts);
        describe();
    }

    function judge(format, h) {
        const ideal = best(format);
        const size = h > 3 * ideal ? 'too large' : h < ideal / 3 ? 'too small' : 'near it';
        return `The best h is ${scientific(ideal)}; this one is ${size}.`;
    }
    function describe() {
        const h = 10 ** exponent;
        sentence.replaceChildren(`h = ${scientific(h)}: truncation is near ${scientific(truncation(h))}.`,
            ...FORMATS.flatMap(format => {
                const found = error(format, h);
                return [element('br'), element('strong', {}, format.name), found === null
                    ? ': x + h and x - h are the same number, and the difference is 0 / 0.'
                    : `: rounding is at most ${scientific(rounding(format, h))}, the error is ` +
                      `${scientific(found)}. ${judge(format, h)}`];
            }));
    }

    const choice = element('select', { change: () => {
        chosen = FUNCTIONS[choice.selectedIndex];
        draw();
    } }, ...FUNCTIONS.map(({ name }) => element('option', {}, name)));
    place.append(controls(element('label', {}, 'f ', choice),
        slider('h', { min: H[0], max: H[1], step: 0.25, value: exponent, text: e => scientific(10 ** e) },
            value => { exponent = value; draw(); })), svg, sentence);
    addEventListener('resize', draw);
});

picture('checking_faults', place => {
    // The check's own r, and the program's x
    const R = [0.3804, -0.2963, -0.2492, -1.0038], X = [0.5, 1, 1.5, 2], N = X.length;
    const FAULTS = [
        { name: 'none', formula: '(g_k - sum) / s', value: (g, sum, s) => (g - sum) / s },
        { name: 'sign', formula: '(sum - g_k) / s', value: (g, sum, s) => (sum - g) / s },
        { name: 'factor left out', formula: 'g_k - sum', value: (g, sum) => g - sum },
        { name: 'sum left out', formula: 'g_k / s', value: (g, sum, s) => g / s },
        { name: 'last element not written', formula: '(g_k - sum) / s, for k < n - 1',
          value: (g, sum, s) => (g - sum) / s, count: N - 1 },
        { name: 'stored instead of added', formula: '(g_k - sum) / s',
          value: (g, sum, s) => (g - sum) / s, stores: true },
    ];
    let fault = FAULTS[3], uses = 1;
    const add = (a, b) => a + b;
    const table = element('table', { class: 'numbers', 'aria-label': 'gradient by the tape and by differences' });
    const sentence = element('p', { 'aria-live': 'polite', style: 'min-height: 4.5em' });

    function loss(x) { // sum_i r_i out_i, out_i = uses x_i / s
        const s = x.reduce(add);
        return uses * x.map((value, i) => R[i] * value / s).reduce(add);
    }
    function differences() {
        const h = Math.cbrt(2 ** -52);
        return X.map((_, k) => {
            const moved = step => X.map((value, i) => i === k ? value + step : value);
            return (loss(moved(h)) - loss(moved(-h))) / (2 * h);
        });
    }
    function tape() {
        const s = X.reduce(add), sum = X.map((value, i) => R[i] * value / s).reduce(add);
        const dx = Array(N).fill(NaN);
        for (let use = 0; use < uses; use++)
            for (let k = 0; k < (fault.count ?? N); k++) {
                const value = fault.value(R[k], sum, s);
                dx[k] = use === 0 || fault.stores ? value : dx[k] + value;
            }
        return dx;
    }
    // As gradient_check: what the wrong numbers resemble.
    function pattern(a, n, error) {
        const off = a.map((value, k) => value - n[k]), left = Math.max(...off.map(Math.abs)) / 20;
        const ratio = a.map((value, k) => value * n[k]).reduce(add) / n.map(value => value * value).reduce(add);
        if (a.some(isNaN))
            return 'the last 1 of 4 elements are NaN: never written?';
        if (error <= 1e-7)
            return '';
        if (a.every((value, k) => Math.abs(value - ratio * n[k]) <= left))
            return `${Number(ratio.toPrecision(3))} times the differences`;
        return off.every(value => Math.abs(value - off[0]) <= left) ? 'off by a constant in each row' : '';
    }
    function draw() {
        const a = tape(), n = differences();
        const off = a.map((value, k) => Math.abs(value - n[k]));
        const error = off.some(isNaN) ? NaN : Math.max(...off) / Math.max(...n.map(Math.abs));
        const found = pattern(a, n, error), padding = { style: 'padding: 0.15rem 0.3rem' };
        table.replaceChildren(
            element('tr', {}, ...['', 'tape', 'differences', 'off by'].map(name =>
                element('th', { scope: 'col', ...padding }, name))),
            ...X.map((_, k) => element('tr', {}, element('th', { scope: 'row', ...padding }, `dx[${k}]`),
                ...[a[k], n[k], a[k] - n[k]].map(value =>
                    element('td', padding, isNaN(value) ? 'NaN' : value.toFixed(4).replace(/^-(0\.0+)$/, '$1'))))));
        const times = uses === 1 ? 'x is used once' : 'x is used twice';
        const verb = fault.stores ? 'stores' : 'adds';
        sentence.textContent = `The backward function ${verb} ${fault.formula}, and ${times}. ` +
            (error <= 1e-7 ? `The error is ${scientific(error)}: the check passes` +
                (fault.stores ? ', and the fault remains.' : '.')
                : `The error is ${isNaN(error) ? 'NaN' : error.toFixed(2)}: the check fails, ` +
                  `and prints "${found}".`);
    }
    const choice = element('select', { change: () => {
        fault = FAULTS[choice.selectedIndex];
        draw();
    } }, ...FAULTS.map(({ name }) => element('option', { selected: name === fault.name }, name)));
    const twice = element('input', { type: 'checkbox', change: () => {
        uses = twice.checked ? 2 : 1;
        draw();
    } });
    place.append(controls(element('label', {}, 'fault ', choice), element('label', {}, twice, ' x is used twice')),
        element('div', { class: 'scroll' }, table), sentence);
    draw();
});
