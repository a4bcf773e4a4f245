// Softmax of three logits: bars of p, the Jacobian as a heat map with g at its rows, and dx below its
// columns, since dx_j is the sum over c of g_c times the entry in row c, column j.
picture('softmax', place => {
    const CLASSES = [0, 1, 2], NAMES = ['₁', '₂', '₃'];
    const state = { x: [1, 2, 4], temperature: 1, loss: 0 };
    const svg = element('svg', { viewBox: '0 0 300 334', role: 'img',
                                 'aria-labelledby': 'softmax-sentence' });
    svg.style.maxWidth = '27rem';
    svg.style.margin = '0 auto';
    const sentence = element('p', { id: 'softmax-sentence', 'aria-live': 'polite' });

    // The six losses: p_1, p_2, p_3, and -ln p_t for each t.
    const is_logarithm = () => state.loss >= 3;
    const chosen = () => state.loss % 3;
    const loss_name = () => (is_logarithm() ? '−ln p' : 'p') + NAMES[chosen()];

    const sum = values => values.reduce((total, value) => total + value, 0);
    function number(value, digits = 3) {
        const size = Math.abs(value);
        const text = size < 1000 ? size.toFixed(digits) : size.toExponential(1);
        return (value < 0 && Number(text) > 0 ? '−' : '') + text;
    }
    const of_g = value => number(value, Number.isInteger(value) ? 0 : 2);
    const list = (values, text = number) => `(${values.map(value => text(value)).join(', ')})`;

    // All numbers of the picture. With a temperature T, p = softmax(x / T).
    function compute() {
        const { x, temperature } = state, t = chosen();
        const powers = x.map(value => Math.exp((value - Math.max(...x)) / temperature));
        const p = powers.map(power => power / sum(powers));
        const g = CLASSES.map(c => c !== t ? 0 : is_logarithm() ? -1 / p[t] : 1);
        const jacobian = CLASSES.map(c =>
            CLASSES.map(j => p[c] * ((c === j) - p[j]) / temperature));
        const mean = sum(CLASSES.map(c => p[c] * g[c]));
        const dx = CLASSES.map(j => p[j] * (g[j] - mean) / temperature);
        return { p, g, jacobian, dx };
    }

    // ------------------------------------------------------------------------------- the drawing
    const LEFT = 52, WIDTH = 62, HEIGHT = 34, P_BASE = 84, MAP_TOP = 122, DX_BASE = 282;
    const middle = j => LEFT + WIDTH * (j + 0.5);

    function text(x, y, content, { anchor = 'middle', strong = false } = {}) {
        const made = element('text', { x, y, 'text-anchor': anchor }, content);
        if (strong)
            made.style.fill = 'var(--ink)';
        return made;
    }
    function rectangle(x, y, width, height, color, opacity = 1) {
        const made = element('rect', { x, y, width, height });
        made.style.fill = color;
        made.style.fillOpacity = opacity;
        return made;
    }
    const sign_color = value => value < 0 ? 'var(--minus)' : 'var(--plus)';

    // A bar from the base line, of at most `length`, with its number beyond its end.
    function bar(j, base, value, largest, length, color) {
        const height = length * Math.abs(value) / largest;
        const top = value < 0 ? base : base - height;
        return [rectangle(middle(j) - 16, top, 32, height, color),
                text(middle(j), value < 0 ? base + height + 13 : top - 4, number(value),
                     { strong: true })];
    }
    const base_line = y => element('path', { class: 'grid', d: `M${LEFT} ${y}h${3 * WIDTH}` });

    function probabilities({ p }) {
        return [text(LEFT - 8, P_BASE, 'p', { anchor: 'end' }), base_line(P_BASE),
                ...CLASSES.flatMap(j => bar(j, P_BASE, p[j], 1, 62, 'var(--accent)'))];
    }

    function cell(c, j, value) {
        const x = LEFT + WIDTH * j, y = MAP_TOP + HEIGHT * c;
        // At most 0.4, so that the number in the cell keeps its contrast.
        const opacity = 0.4 * Math.min(1, Math.abs(value) * state.temperature / 0.25);
        const made = rectangle(x + 1, y + 1, WIDTH - 2, HEIGHT - 2, sign_color(value), opacity);
        made.style.stroke = 'var(--line)';
        return [made, text(middle(j), y + HEIGHT / 2 + 4, number(value, 3), { strong: true })];
    }
    function heat_map({ jacobian, g }) {
        const right = LEFT + 3 * WIDTH + 30;
        return [...CLASSES.map(j => text(middle(j), MAP_TOP - 6, `x${NAMES[j]}`)),
                text(right, MAP_TOP - 6, 'g'),
                ...CLASSES.flatMap(c => [
                    text(LEFT - 8, MAP_TOP + HEIGHT * (c + 0.5) + 4, `p${NAMES[c]}`,
                         { anchor: 'end' }),
                    ...CLASSES.flatMap(j => cell(c, j, jacobian[c][j])),
                    text(right, MAP_TOP + HEIGHT * (c + 0.5) + 4, of_g(g[c]),
                         { strong: g[c] !== 0 }),
                ])];
    }

    function gradient({ dx }) {
        const largest = (is_logarithm() ? 1 : 0.25) / state.temperature; // what dx can reach
        return [text(LEFT - 8, DX_BASE + 4, 'dx', { anchor: 'end' }), base_line(DX_BASE),
                ...CLASSES.flatMap(j => bar(j, DX_BASE, dx[j], largest, 36, sign_color(dx[j])))];
    }

    // ------------------------------------------------------------------------------ the sentence
    const joined = chosen_classes => chosen_classes.map(j => `x${NAMES[j]}`).join(' and ');

    function what_moves(dx) {
        const raising = CLASSES.filter(j => dx[j] > 5e-4);
        const lowering = CLASSES.filter(j => dx[j] < -5e-4);
        if (!raising.length)
            return 'Hardly any logit moves L.';
        return `More of ${joined(raising)} raises L, more of ${joined(lowering)} lowers it.`;
    }
    function describe({ p, g, dx }) {
        const divided = state.temperature !== 1;
        const error = divided ? '(p − y) / T' : 'p − y';
        const rule = is_logarithm() ? error : `row ${chosen() + 1} of the Jacobian`;
        return `p = ${list(p)}. L = ${loss_name()}, so g = ${list(g, of_g)}, and dx is ${rule}, ` +
            `${list(dx)}. ${what_moves(dx)} The sum of dx is 0.`;
    }

    function draw() {
        const values = compute();
        svg.replaceChildren(...probabilities(values), ...heat_map(values), ...gradient(values));
        sentence.textContent = describe(values);
    }

    // ------------------------------------------------------------------------------ the controls
    const logit = j => slider(`x${NAMES[j]}`, { min: -4, max: 4, step: 0.1, value: state.x[j],
                                                text: value => number(value, 1) }, value => {
        state.x[j] = value;
        draw();
    });
    const temperature = slider('temperature', { min: 0.2, max: 4, step: 0.1, value: 1,
                                                  text: value => number(value, 1) }, value => {
        state.temperature = value;
        draw();
    });
    function choice(index) {
        const change = () => {
            state.loss = index;
            draw();
        };
        const label = (index < 3 ? 'p' : '−ln p') + NAMES[index % 3];
        return element('label', {}, element('input', { type: 'radio', name: 'softmax-loss', change,
                                                       checked: index === state.loss }), label);
    }
    temperature.querySelector('input').style.width = '6rem'; // fits the narrowest screens
    const losses = element('fieldset', { class: 'controls' }, element('legend', {}, 'The loss L'),
                           ...[0, 1, 2, 3, 4, 5].map(choice));
    losses.style.border = '1px solid var(--line)';
    place.append(controls(...CLASSES.map(logit), temperature), losses, svg, sentence);
});
