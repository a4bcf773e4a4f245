// What the pictures of all pages share. A chapter's picture.js calls
//     picture('NAME', place => { ... })
// which fills every <figure data-picture="NAME">, whose caption stays below it.
'use strict';

// An element with attributes and children; a name of SVG's makes one of SVG.
const SVG_NAMES = ['svg', 'path', 'text', 'circle', 'rect', 'line', 'g', 'polyline'];
function element(name, attributes = {}, ...children) {
    const made = SVG_NAMES.includes(name)
        ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes))
        if (typeof value === 'function')
            made['on' + key] = value;
        else if (value !== undefined && value !== false)
            made.setAttribute(key, value === true ? '' : value);
    made.append(...children);
    return made;
}

// A labelled slider: changed(value) now and whenever it moves. text(value) stands beside it.
function slider(label, { min, max, step, value, text = String }, changed) {
    const output = element('output'), input = element('input', { type: 'range', min, max, step, value });
    const update = () => {
        output.textContent = text(Number(input.value));
        changed(Number(input.value));
    };
    input.addEventListener('input', update);
    queueMicrotask(update);
    return element('label', {}, label + ' ', input, ' ', output);
}

function button(label, clicked) {
    return element('button', { type: 'button', click: clicked }, label);
}

// A row of controls above a picture.
function controls(...children) {
    return element('div', { class: 'controls' }, ...children);
}

function picture(name, fill) {
    if (typeof document !== 'undefined')
        document.querySelectorAll(`[data-picture="${name}"]`).forEach(place => {
            const made = element('div');
            place.prepend(made);
            fill(made, place);
        });
}
