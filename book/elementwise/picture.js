// Two pictures: a function of one number with its derivative and its tangent; a table to which a
// row, a column or a number is added, with the elements of g that are summed.
'use strict';

// A labelled choice of names: changed(index) now, and when another one is chosen.
function chooser(label, names, changed) {
    const select = element('select', { change: () => changed(select.selectedIndex) },
        ...names.map(name => element('option', {}, name)));
    queueMicrotask(() => changed(select.selectedIndex));
    return element('label', {}, label + ' ', select);
}

picture('elementwise', place => {
    const sigmoid = x => 1 / (1 + Math.exp(-x));
    const FUNCTIONS = [
        { name: 'tanh', f: Math.tanh, derivative: x => 1 - Math.tanh(x) ** 2 },
        { name: 'sigmoid', f: sigmoid, derivative: x => sigmoid(x) * (1 - sigmoid(x)) },
        { name: 'relu', f: x => Math.max(x, 0), derivative: x => x > 0 ? 1 : 0 },
        {
            name: 'silu', f: x => x * sigmoid(x),
            derivative: x => sigmoid(x) * (1 + x * (1 - sigmoid(x))),
        },
        {
            name: 'elu + 1', f: x => x > 0 ? x + 1 : Math.exp(x),
            derivative: x => x > 0 ? 1 : Math.exp(x),
        },
        { name: 'exp', f: Math.exp, derivative: Math.exp, low: -3, high: 21, mark: 5 },
    ];
    const HEIGHT = 300, LEFT = 26, TOP = 30, BOTTOM = 22;
    let chosen = FUNCTIONS[0], x = -1;
    const id = 'elementwise-sentence';
    const svg = element('svg', { role: 'img', 'aria-labelledby': id });
    const sentence = element('p', { id, 'aria-live': 'polite', style: 'min-height: 3em' });

    function draw() {
        const { name, f, derivative, low = -1.5, high = 4.2, mark = 1 } = chosen;
        const width = svg.clientWidth || 460; // so that letters keep their size on a phone
        const across = t => LEFT + (t + 3) / 6 * (width - LEFT - 8);
        const up = y => HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
        // The part of a curve, from one x to another, that is within the picture.
        function curve(h, from, to, style) {
            let d = '';
            for (let k = 0; k <= 120; k++) {
                const t = from + (to - from) * k / 120, y = h(t);
                if (t >= -3 && t <= 3 && y >= low && y <= high)
                    d += `${d ? 'L' : 'M'}${across(t).toFixed(1)} ${up(y).toFixed(1)}`;
            }
            return element('path', { d, fill: 'none', style });
        }
        const INK = 'stroke: var(--ink); stroke-width: 2';
        const DASHED = 'stroke: var(--accent); stroke-width: 2; stroke-dasharray: 6 4';
        const TANGENT = 'stroke: var(--plus); stroke-width: 3';
        const rate = derivative(x), marks = [];
        for (let y = Math.ceil(low / mark) * mark; y <= high; y += mark)
            marks.push(element('line', {
                class: 'grid', x1: LEFT, x2: width - 8, y1: up(y), y2: up(y),
                style: y === 0 ? 'stroke: var(--soft)' : '',
            }), element('text', { x: LEFT - 6, y: up(y) + 4, 'text-anchor': 'end' }, String(y)));
        for (let t = -3; t <= 3; t++)
            marks.push(element('text', {
                x: across(t), y: HEIGHT - 4, 'text-anchor': 'middle',
            }, String(t)));
        const legend = [['f', INK], ["f'", DASHED], ['tangent', TANGENT]].map(([text, style], i) =>
            element('g', {},
                element('line', {
                    x1: LEFT + 80 * i, x2: LEFT + 80 * i + 28, y1: 12, y2: 12, style,
                }),
                element('text', { x: LEFT + 80 * i + 34, y: 16 }, text)));
        svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
        svg.replaceChildren(...marks, ...legend, curve(f, -3, 3, INK),
            curve(derivative, -3, -1e-6, DASHED), curve(derivative, 1e-6, 3, DASHED),
            curve(t => f(x) + rate * (t - x), x - 1, x + 1, TANGENT),
            element('line', {
                x1: across(x), x2: across(x), y1: up(f(x)), y2: up(rate),
                style: 'stroke: var(--soft); stroke-dasharray: 2 3',
            }),
            element('circle', { cx: across(x), cy: up(f(x)), r: 5, style: 'fill: var(--plus)' }),
            element('circle', {
                cx: across(x), cy: up(rate), r: 4, style: 'fill: var(--accent)',
            }));
        sentence.textContent = `${name} at x = ${x.toFixed(1)}: f = ${f(x).toFixed(4)}, ` +
            `f' = ${rate.toFixed(4)}. ${passes(name, rate)}`;
    }
    function passes(name, rate) {
        const percent = (100 * Math.abs(rate)).toFixed(1);
        if (name === 'relu' && x === 0)
            return "This is the kink: every f' from 0 to 1 is right. The library takes 0.";
        if (rate === 0)
            return 'dx = 0: all of g is lost, here and at every other x below 0.';
        if (rate < 0)
            return `dx has the other sign than g, and ${percent} % of its size.`;
        if (rate === 1)
            return 'dx = g: nothing of g is lost.';
        if (rate > 1)
            return `dx is ${rate.toFixed(2)} times g: nothing of g is lost.`;
        return `dx is ${percent} % of g; ${(100 - 100 * rate).toFixed(1)} % of g is lost.`;
    }
    place.append(controls(
        chooser('Function', FUNCTIONS.map(each => each.name), index => {
            chosen = FUNCTIONS[index];
            draw();
        }),
        slider('x', { min: -3, max: 3, step: 0.1, value: x, text: at => at.toFixed(1) }, at => {
            x = at;
            draw();
        })), svg, sentence);
    window.addEventListener('resize', draw);
});

picture('copies', place => {
    const G = [[1, -0.5, 2, 0.5], [-1, 1.5, 0, 2], [0.5, 1, -1, 1]]; // those of copies.c
    // What b is; its elements, as the places that an element was copied to; their names.
    const rows = [0, 1, 2], columns = [0, 1, 2, 3];
    const SHAPES = [
        {
            name: 'a row', copies: columns.map(c => rows.map(r => [r, c])),
            index: i => `_${i + 1}`,
            formula: 'out_rc = x_rc + b_c', where: i => `into all rows, in column ${i + 1}`,
        },
        {
            name: 'a column', copies: rows.map(r => columns.map(c => [r, c])),
            index: i => `_${i + 1}`,
            formula: 'out_rc = x_rc + b_r', where: i => `into all columns, in row ${i + 1}`,
        },
        {
            name: 'one number', copies: [rows.flatMap(r => columns.map(c => [r, c]))],
            index: () => '',
            formula: 'out_rc = x_rc + b', where: () => 'to every place',
        },
    ];
    let shape = SHAPES[0], chosen = 0;
    const table = element('table', { class: 'numbers' });
    const sentence = element('p', { 'aria-live': 'polite', style: 'min-height: 4.5em' });
    const show = number => String(number).replace('-', '−');

    function choose(i) {
        chosen = i;
        draw();
    }
    const sum_of = i => shape.copies[i].reduce((sum, [r, c]) => sum + G[r][c], 0);
    const PADDING = 'padding: 0.25rem 0.4rem; text-align: center';
    // The button of element i of db: its sum, with its name for a reader who cannot see the table.
    function sum_cell(i, colspan) {
        const pressed = i === chosen;
        return element('td', { style: PADDING, colspan }, element('button', {
            type: 'button', click: () => choose(i), 'aria-pressed': String(pressed),
            'aria-label': `db${shape.index(i)} = ${show(sum_of(i))}`,
            style: 'padding: 0 0.4rem; min-width: 2.6rem;' +
                (pressed ? 'border: 2px solid var(--accent); font-weight: bold' : ''),
        }, show(sum_of(i))));
    }
    function g_cell(r, c) {
        const i = shape.copies.findIndex(copies => copies.some(([r2, c2]) => r2 === r && c2 === c));
        const marked = i === chosen ? '; font-weight: bold; background: var(--code); ' +
            'box-shadow: inset 0 0 0 2px var(--accent)' : '';
        const style = `${PADDING}; cursor: pointer${marked}`;
        return element('td', { style, click: () => choose(i) }, show(G[r][c]));
    }
    const head = (text, scope) => element('th', { scope, style: PADDING }, text);

    function draw() {
        const is_column = shape === SHAPES[1], is_row = shape === SHAPES[0];
        const focused = table.contains(document.activeElement);
        table.replaceChildren(
            element('tr', {}, head('g', 'col'), ...columns.map(c => head(`c = ${c + 1}`, 'col')),
                ...is_column ? [head('db', 'col')] : []),
            ...rows.map(r => element('tr', {}, head(`r = ${r + 1}`, 'row'),
                ...columns.map(c => g_cell(r, c)), ...is_column ? [sum_cell(r)] : [])),
            ...is_column ? [] : [element('tr', {}, head('db', 'row'),
                ...is_row ? columns.map(c => sum_cell(c)) : [sum_cell(0, 4)])]);
        if (focused)
            table.querySelector('[aria-pressed=true]').focus();
        const copies = shape.copies[chosen], b = `b${shape.index(chosen)}`;
        const terms = copies.map(([r, c]) => G[r][c] < 0 ? `(${show(G[r][c])})` : show(G[r][c]));
        sentence.textContent = `${shape.formula}. ${b} was copied ${shape.where(chosen)}: ` +
            `${copies.length} copies. d${b} is the sum of g there: ${terms.join(' + ')} = ` +
            `${show(sum_of(chosen))}.`;
    }
    place.append(controls(chooser('b is', SHAPES.map(each => each.name), index => {
        shape = SHAPES[index];
        choose(0);
    })), table, sentence);
});
