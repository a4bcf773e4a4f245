// The book's pages in Chromium: node tests/book_pages.mjs BUILD_DIRECTORY [--shots DIRECTORY]
// Each page, with and without scripts; a page with the copy task also trains. --shots writes
// pictures of each page there: NAME-light.png, NAME-dark.png, NAME-375.png, and NAME.pdf, a print.
import { existsSync, mkdirSync, readFileSync, readdirSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { chromium } from './chromium.mjs';

const [build, option, shots] = process.argv.slice(2);
if (!build || (option && (option !== '--shots' || !shots))) {
    console.error('usage: node tests/book_pages.mjs BUILD_DIRECTORY [--shots DIRECTORY]');
    process.exit(2);
}
const book = resolve(build, 'book');
const names = readdirSync(book).filter(name => name.endsWith('.html')).sort();

let checks = 0, failed = 0;
function check(ok, claim) {
    checks++;
    failed += !ok;
    console.log(ok ? 'ok  ' : 'FAIL', claim);
}
// What breaks the claim is listed; nothing may be.
function none(list, claim) {
    check(list.length === 0, list.length ? `${claim}: ${list.slice(0, 5).join('; ')}` : claim);
}

// ------------------------------------------------------------------------------------ every page
// These functions run in the page, as text.
const VISIBLE = `const visible = element => element.checkVisibility({ visibilityProperty: true })
    && element.getBoundingClientRect().width > 1;`;

// All text with its contrast (WCAG 2.1, 1.4.3) to the background behind it; the worst one first.
function contrasts() {
    const context = Object.assign(document.createElement('canvas'), { width: 1, height: 1 })
        .getContext('2d', { willReadFrequently: true });
    function parse(color) { // any syntax of CSS
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = color;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b, alpha] = context.getImageData(0, 0, 1, 1).data;
        return { rgb: [r, g, b], alpha: alpha / 255 };
    }
    const over = (front, alpha, back) => back.map((c, k) => c + alpha * (front[k] - c));
    function background(element) {
        if (!element)
            return [255, 255, 255];
        const { rgb, alpha } = parse(getComputedStyle(element).backgroundColor);
        return alpha === 1 ? rgb : over(rgb, alpha, background(element.parentElement));
    }
    function opacity(element) {
        return element ? getComputedStyle(element).opacity * opacity(element.parentElement) : 1;
    }
    function luminance(rgb) {
        const [r, g, b] = rgb.map(c => c / 255 <= 0.04045
            ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    }
    function contrast(element) {
        const style = getComputedStyle(element), back = background(element);
        const { rgb, alpha } = parse(element.closest('svg') ? style.fill : style.color);
        const front = over(rgb, alpha * opacity(element), back);
        const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    }
    const elements = new Set(document.querySelectorAll('input, select, textarea'));
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode())
        if (texts.currentNode.data.trim())
            elements.add(texts.currentNode.parentElement);
    return [...elements]
        .filter(element => visible(element) && !element.matches('script, style, :disabled'))
        .map(element => ({
            ratio: contrast(element),
            text: `${element.localName}.${element.className} "${element.textContent.slice(0, 20)}"`,
        }))
        .sort((a, b) => a.ratio - b.ratio);
}

async function checkContrast(page, claim) {
    for (const dark of [false, true]) {
        await page.prefer({ dark });
        await wait(100);
        const all = await page.run(`${VISIBLE} ${contrasts}; return contrasts();`);
        const low = all.filter(({ ratio }) => ratio < 4.5);
        none(low.map(({ ratio, text }) => `${text} ${ratio.toFixed(2)}`),
            `${claim}, ${dark ? 'dark' : 'light'}: contrast of ${all.length} texts, `
            + `at least ${all[0]?.ratio.toFixed(1)}, is 4.5 or more`);
    }
    await page.prefer();
}

async function checkNames(page) {
    const shown = await page.run(`${VISIBLE} return [...document.querySelectorAll(arguments[0])]
        .filter(visible)`, 'a[href], button, input, select, textarea, summary, [tabindex]');
    const unnamed = [];
    for (const element of shown)
        if (!await page.label(element))
            unnamed.push(await page.run('return arguments[0].outerHTML.slice(0, 80)', element));
    none(unnamed, `all ${shown.length} controls and links have a name`);
}

// A picture's text is its own name, or the text of the label or the figure that it stands in.
async function checkPictures(page) {
    const pictures = await page.run(`${VISIBLE} return [...document.querySelectorAll(
        'img, canvas, svg, [role=img]')].filter(visible)`);
    const silent = [];
    for (const picture of pictures) {
        const around = await page.run(`return arguments[0].closest('label, figure')
            ?.textContent.trim()`, picture);
        if (!around && !await page.label(picture))
            silent.push(await page.run('return arguments[0].outerHTML.slice(0, 80)', picture));
    }
    none(silent, `all ${pictures.length} pictures have a text`);
}

async function checkHeadings(page) {
    const levels = await page.run(`${VISIBLE} return [...document.querySelectorAll(
        'h1, h2, h3, h4, h5, h6')].filter(visible).map(heading => Number(heading.localName[1]))`);
    const ordered = levels.every((level, i) => i === 0 ? level === 1
        : level > 1 && level <= levels[i - 1] + 1);
    check(levels.length > 0 && ordered, `headings are in order: ${levels.join(' ')}`);
}

async function checkWidths(page) {
    for (const width of [320, 375]) {
        await page.resize(width);
        const wide = await page.run('return document.documentElement.scrollWidth');
        const wider = wide <= width ? [] : await page.run(`
            return [...document.querySelectorAll('*')]
                .filter(element => element.getBoundingClientRect().right > arguments[0] + 0.5)
                .map(element => element.localName + '.' + element.className)`, width);
        check(wide <= width, `no sideways scrolling at ${width} px ${wider.slice(0, 5).join(' ')}`);
    }
    await page.resize(900);
}

async function checkLinks(page) {
    const links = await page.run(`return [...document.querySelectorAll('a[href]')]
        .map(link => link.href).filter(href => href.startsWith('file:'))`);
    const ids = await page.run('return [...document.querySelectorAll("[id]")].map(e => e.id)');
    const here = await page.run('return location.href.split("#")[0]');
    none(links.filter(href => {
        const [path, id] = href.split('#');
        return !existsSync(fileURLToPath(path)) || (id && path === here && !ids.includes(id));
    }), `all ${links.length} links within the book have a target`);
}

// Of the page and what it loads; a worker is a blob.
async function checkRequests(page) {
    const urls = (await page.logs('performance'))
        .map(({ message }) => JSON.parse(message).message)
        .filter(({ method }) => method === 'Network.requestWillBeSent')
        .map(({ params }) => params.request.url);
    none(urls.filter(url => !/^(file|data|blob):/.test(url)),
        `none of ${urls.length} requests leaves the folder`);
}

async function checkConsole(page) {
    none((await page.logs('browser')).map(({ message }) => message), 'the console is empty');
}

async function checkWithoutScripts(page, url, trains) {
    await page.open(url);
    const text = await page.run('return document.querySelector("main").innerText');
    check(text.length > 300, `without scripts: ${text.length} characters of text`);
    if (trains)
        check(/^step +200 +loss/m.test(text), "without scripts: the native program's losses");
}

async function shoot(page, name) {
    mkdirSync(shots, { recursive: true });
    const file = end => `${shots}/${name.replace('.html', '')}${end}`;
    for (const dark of [false, true]) {
        await page.prefer({ dark });
        await wait(300);
        await page.shot(file(dark ? '-dark.png' : '-light.png'));
    }
    await page.prefer();
    await page.resize(375, 800);
    await wait(300);
    await page.shot(file('-375.png'));
    await page.resize(900);
    await page.print(file('.pdf'));
}

// ---------------------------------------------------------------------------------- the copy task
const STATUS = 'document.getElementById("live-status").textContent';
const READING = 'document.getElementById("live-reading").textContent';
const ERROR = 'document.getElementById("live-error")';

// Moves a control as a reader does: the value, then the events.
function set(page, id, value) {
    return page.run(`const control = document.getElementById(arguments[0]);
        control.value = arguments[1];
        control.dispatchEvent(new Event('input'));
        control.dispatchEvent(new Event('change'));`, id, String(value));
}

// [step, loss] of every 20th step, once there are steps of them.
async function losses(page, steps) {
    const found = await page.until(`const losses = document.getElementById('live').dataset.losses;
        return losses && JSON.parse(losses).length >= ${steps / 20} && losses`, 60);
    return found ? JSON.parse(found) : [];
}

async function checkTraining(page) {
    const native = new Map();
    for (const [, step, loss] of
        readFileSync(`${book}/copy.txt`, 'utf8').matchAll(/^step +(\d+) +loss ([\d.]+)/gm))
        native.set(Number(step), Number(loss));
    await page.click('#live-run');
    const first = await losses(page, 200);
    for (const [step, tolerance] of [[20, 1e-5], [100, 1e-5], [200, 1e-2]]) {
        const loss = first.find(point => point[0] === step)?.[1];
        const error = Math.abs(loss / native.get(step) - 1);
        check(error <= tolerance, `step ${step}: loss ${loss?.toFixed(6)}, native `
            + `${native.get(step)}: relative error ${error.toExponential(1)}, `
            + `at most ${tolerance}`);
    }
    return first;
}

async function checkPause(page) {
    await page.click('#live-run');
    await wait(500);
    const paused = await page.run(`return ${STATUS}`);
    await wait(700);
    const later = await page.run(`return ${STATUS}`);
    check(paused === later && /^Step \d/.test(paused), `Pause pauses: ${paused}`);
    check(await page.run('return document.getElementById("live-spoken").textContent') === paused,
        'a screen reader hears the status');
}

async function checkReading(page) {
    await set(page, 'live-position', 3);
    const read = await page.run(`return ${READING}`);
    check(/Position 3 reads [A-J]\./.test(read), `the slider chooses the position: ${read}`);
    await page.click('.heads label:nth-of-type(3)');
    check(await page.until(`return /Head 3/.test(${READING})`),
        'a click on a picture chooses its head');
    const before = await page.run('return document.getElementById("live-reads").textContent');
    await page.click('#live-another');
    check(await page.until(`return document.getElementById("live-reads").textContent
        !== ${JSON.stringify(before)}`), '"Another sequence" shows another one');
}

async function checkError(page, first) {
    await page.run('document.getElementById("live-length").min = -4');
    await set(page, 'live-length', -4);
    await page.until(`return !${ERROR}.hidden`);
    const sentence = await page.run(`return ${ERROR}.textContent`);
    check(/expected 1 or more/.test(sentence), `a raised error is shown: ${sentence}`);
    await page.run('document.getElementById("live-length").min = 12');
    await set(page, 'live-length', 24);
    await page.click('#live-run');
    const again = await losses(page, 40);
    check(await page.run(`return ${ERROR}.hidden`) && first.length > 1
        && JSON.stringify(again.slice(0, 2)) === JSON.stringify(first.slice(0, 2)),
        'a new instance then gives the same bits');
}

async function checkRate(page, first) {
    await set(page, 'live-rate', -2.3);
    check(await page.run('return document.getElementById("live-rate").ariaValueText') === '0.005',
        'the slider of the learning rate says 0.005');
    await page.click('#live-again');
    // Of the new run: the loss at step 20 differs from the first run's.
    check(await page.until(`
        const losses = JSON.parse(document.getElementById('live').dataset.losses);
        return losses.length > 0 && losses[0][1] !== ${first[0]?.[1]}`),
        'another learning rate gives another loss');
    await set(page, 'live-rate', -2.7);
}

async function checkMotion(page) {
    const position = () => page.run('return document.getElementById("live-position").value');
    await page.click('#live-again'); // it runs
    const start = await position();
    check(await page.until(`
        return document.getElementById('live-position').value !== '${start}'`),
        'the position moves while it trains');
    await page.prefer({ still: true });
    await wait(200);
    const still = await position();
    await wait(700);
    check(still === await position(), 'it does not move for a reader who prefers no motion');
    await page.prefer();
}

async function checkAccuracy(page) {
    const reached = await page.until(`return /reached/.test(${STATUS}) && ${STATUS}`, 90) ?? '';
    const step = Number(/99 % at step (\d+)/.exec(reached)?.[1]);
    check(step <= 1100, `99 % within 1100 steps: ${reached}`);
    await page.click('#live-run'); // Pause
    await wait(300);
}

// Two browsers that cannot run the module: one does not unpack it, one does not compile it.
async function checkOldBrowsers(page, url) {
    for (const [claim, source] of [
        ['without DecompressionStream', 'delete globalThis.DecompressionStream'],
        ['that does not compile the module', 'globalThis.DecompressionStream = TransformStream'],
    ]) {
        const { identifier } =
            await page.devtools('Page.addScriptToEvaluateOnNewDocument', { source });
        await page.open(url);
        check(await page.until(`const text = document.querySelector('main').innerText;
            return /This browser cannot run the program/.test(text)
                && /step +200 +loss/.test(text)`),
            `a browser ${claim} shows the native program's losses`);
        await page.devtools('Page.removeScriptToEvaluateOnNewDocument', { identifier });
    }
}

async function checkLive(page) {
    const first = await checkTraining(page);
    await checkPause(page);
    await checkReading(page);
    await checkError(page, first);
    await checkRate(page, first);
    await checkMotion(page);
    await checkAccuracy(page);
    await checkContrast(page, 'after training');
}

// The four forms of attention, measured in the page.
async function checkForms(page) {
    const figure = 'figure[data-picture=forms]';
    await page.click(`${figure} button`);
    const measured = await page.until(`return document.querySelector('${figure}').dataset.times`, 60);
    const times = JSON.parse(measured ?? 'null');
    check(times?.flat().every(value => value > 0), `"Measure" measures: ${measured}`);
    if (!times)
        return;
    const [[softmax, , recurrent], [softmax2, , recurrent2]] = times.slice(-2); // 1024, 2048
    check(softmax2 / softmax > 1.3 * recurrent2 / recurrent,
        'softmax attention grows faster than the recurrent form');
    check(softmax2 > 3 * recurrent2, 'at 2048 positions it takes more than three times as long');
}

// -------------------------------------------------------------------------------------- the run
async function checkPage(page, plain, name) {
    const url = pathToFileURL(resolve(book, name)).href;
    console.log(`== ${name}`);
    await page.open(url);
    const trains = await page.run('return Boolean(document.getElementById("live"))');
    if (trains) {
        const ready = await page.until('return document.getElementById("live").dataset.ready', 20);
        check(Number(ready ?? 1e9) < 2000, `ready after ${ready} ms, at most 2000`);
    }
    await checkNames(page);
    await checkPictures(page);
    await checkHeadings(page);
    await checkLinks(page);
    await checkContrast(page, 'at the start');
    await checkWidths(page);
    if (trains)
        await checkLive(page);
    if (await page.run('return Boolean(document.querySelector("figure[data-picture=forms]"))'))
        await checkForms(page);
    await checkRequests(page);
    await checkConsole(page);
    if (shots)
        await shoot(page, name);
    if (trains)
        await checkOldBrowsers(page, url);
    await checkWithoutScripts(plain, url, trains);
    return trains;
}

let page, plain;
try {
    page = await chromium();
    plain = await chromium({ scripts: false });
    let training = 0;
    for (const name of names)
        training += await checkPage(page, plain, name);
    check(training > 0, `${training} of ${names.length} pages train`);
} finally {
    await Promise.allSettled([page?.close(), plain?.close()]);
}
console.log(`${checks} checks, ${failed} failed`);
process.exit(failed ? 1 : 0);
