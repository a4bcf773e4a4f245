// x / |x| of two elements: n moves on a circle, and only g's part along the circle reaches x.
'use strict';

picture('norms', place => {
    const UNIT = 62, CENTER = [170, 150];
    let angle = 30, length = 2, g_angle = 90; // degrees; g has length 1
    const sentence = element('p', { id: 'norms-sentence', 'aria-live': 'polite', style: 'min-height: 4.5em' });
    const svg = element('svg', { viewBox: '0 0 340 300', role: 'img', 'aria-labelledby': 'norms-sentence',
        style: 'max-width: 26rem; margin: 0 auto' });

    const vector = (size, degrees) =>
        [size * Math.cos(degrees * Math.PI / 180), size * Math.sin(degrees * Math.PI / 180)];
    const sum = (a, b) => [a[0] + b[0], a[1] + b[1]];
    const times = (factor, a) => [factor * a[0], factor * a[1]];
    const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
    const on_screen = ([x, y]) => [CENTER[0] + UNIT * x, CENTER[1] - UNIT * y];
    const show = number => (Math.abs(number) < 0.005 ? 0 : number).toFixed(2);

    // An arrow from a point by a vector, with a name at its tip.
    function arrow(from, by, name, color, dashes) {
        const tip = on_screen(sum(from, by)), start = on_screen(from), size = Math.hypot(...by);
        if (size < 0.005)
            return element('g');
        const along = [(tip[0] - start[0]) / (UNIT * size), (tip[1] - start[1]) / (UNIT * size)];
        const barb = side => `${tip[0] - 8 * along[0] - side * 4 * along[1]} ` +
            `${tip[1] - 8 * along[1] + side * 4 * along[0]}`;
        return element('g', {},
            element('line', { x1: start[0], y1: start[1], x2: tip[0], y2: tip[1], 'stroke-dasharray': dashes,
                style: `stroke: ${color}; stroke-width: 2` }),
            element('path', { d: `M${barb(1)}L${tip[0]} ${tip[1]}L${barb(-1)}`,
                style: `stroke: ${color}; stroke-width: 2; fill: none` }),
            element('text', { x: tip[0] + 12 * along[0], y: tip[1] + 12 * along[1] + 4, 'text-anchor': 'middle',
                style: 'fill: var(--ink)' }, name));
    }
    function draw() {
        const n = vector(1, angle), x = times(length, n), g = vector(1, g_angle);
        const inward = dot(g, n), tangent = sum(g, times(-inward, n)), dx = times(1 / length, tangent);
        const same = Math.hypot(...sum(sum(n, g), times(-1, x))) < 0.2; // the tips
        const [x0, y0] = CENTER;
        svg.replaceChildren(
            element('path', { class: 'grid', d: `M0 ${y0}H340M${x0} 0V300` }),
            element('circle', { cx: x0, cy: y0, r: UNIT, style: 'stroke: var(--soft); fill: none' }),
            arrow([0, 0], x, same ? 'x, g' : 'x', 'var(--soft)'),
            arrow(n, tangent, '', 'var(--plus)', '4 4'),
            arrow(n, g, same ? '' : 'g', 'var(--plus)'),
            arrow(x, dx, 'dx', 'var(--accent)'),
            element('circle', { cx: on_screen(n)[0], cy: on_screen(n)[1], r: 4, style: 'fill: var(--ink)' }),
            element('text', { x: on_screen(times(0.8, n))[0], y: on_screen(times(0.8, n))[1] + 14,
                'text-anchor': 'middle', style: 'fill: var(--ink)' }, 'n'));
        const part = Math.hypot(...tangent);
        sentence.textContent = `x has length ${length.toFixed(1)}, n = (${show(n[0])}, ${show(n[1])}), ` +
            `g = (${show(g[0])}, ${show(g[1])}). The part of g along n is ${show(inward)}; it is removed. ` +
            (part < 0.005
                ? 'Nothing is left: g points along n or against it, and no step of x moves n that way, so dx is 0.'
                : `The part along the circle (dashed) has length ${show(part)}. Divided by the length of x it is ` +
                  `dx = (${show(dx[0])}, ${show(dx[1])}), of length ${show(part / length)}.`);
    }
    const degrees = value => `${value}°`;
    place.append(
        controls(
            slider('angle of x', { min: -180, max: 180, step: 5, value: angle, text: degrees },
                value => { angle = value; draw(); }),
            slider('length of x', { min: 0.5, max: 2, step: 0.1, value: length, text: value => value.toFixed(1) },
                value => { length = value; draw(); }),
            slider('angle of g', { min: -180, max: 180, step: 5, value: g_angle, text: degrees },
                value => { g_angle = value; draw(); })),
        svg, sentence);
});
