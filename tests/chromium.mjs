// Drives headless Chromium by chromedriver, over HTTP: no packages. Close the browser in `finally`:
//
//     const page = await chromium({ width: 375 });
//     try { await page.open('file:///tmp/a.html'); ... } finally { await page.close(); }
//
// A program that ends without closing it, by an exception or a signal, ends it on exit.
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { setTimeout as wait } from 'node:timers/promises';

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'])
    process.once(signal, () => process.exit(1));

// Starts chromedriver on a free port, which it prints. The driver and its browsers are a group of
// processes, which ends as a whole.
function startDriver() {
    const driver = spawn('chromedriver', ['--port=0'],
                         { detached: true, stdio: ['ignore', 'pipe', 'ignore'] });
    const end = () => {
        process.off('exit', end);
        try {
            process.kill(-driver.pid);
        } catch { /* it has ended */ }
    };
    process.on('exit', end);
    const port = new Promise((resolve, reject) => {
        let printed = '';
        driver.stdout.on('data', text => {
            printed += text;
            const found = /started successfully on port (\d+)/.exec(printed);
            if (found)
                resolve(Number(found[1]));
        });
        driver.on('error', reject);
        driver.on('exit', () => reject(Error(`chromedriver ended: ${printed}`)));
    });
    return { port, end };
}

export async function chromium({ width = 900, height = 1000, scripts = true } = {}) {
    const driver = startDriver();
    let session = '';

    async function call(method, path, body) {
        const url = `http://127.0.0.1:${await driver.port}${session}${path}`;
        const reply = await fetch(url, { method, body: body && JSON.stringify(body) });
        const { value } = await reply.json();
        if (value?.error)
            throw Error(`${method} ${path}: ${value.error}: ${value.message}`);
        return value;
    }

    async function start() {
        const args = ['--headless=new', '--no-sandbox', '--disable-gpu'];
        const { sessionId } = await call('POST', '/session', { capabilities: { alwaysMatch: {
            'goog:chromeOptions': { args },
            'goog:loggingPrefs': { browser: 'ALL', performance: 'ALL' },
        } } });
        session = `/session/${sessionId}`;
        await page.resize(width, height);
        await page.prefer();
        await page.devtools('Emulation.setScriptExecutionDisabled', { value: !scripts });
    }

    const page = {
        open: url => call('POST', '/url', { url }),
        // Runs the body of a function in the page; an element returned can be an argument later.
        run: (body, ...args) => call('POST', '/execute/sync', { script: body, args }),
        // Waits until the body returns what counts as true, and returns it; after seconds, null.
        async until(body, seconds = 10) {
            for (const end = Date.now() + 1000 * seconds; Date.now() < end; await wait(50)) {
                const value = await page.run(body);
                if (value)
                    return value;
            }
            return null;
        },
        async click(selector) {
            const [element] = await page.all(selector);
            await call('POST', `/element/${idOf(element)}/click`, {});
        },
        all: selector => call('POST', '/elements', { using: 'css selector', value: selector }),
        // The name that a screen reader hears.
        label: element => call('GET', `/element/${idOf(element)}/computedlabel`),
        // The messages since the last call: "browser" is the console, "performance" has requests.
        logs: type => call('POST', '/se/log', { type }),
        devtools: (cmd, params = {}) => call('POST', '/goog/cdp/execute', { cmd, params }),
        resize: (width, height = 1000) => page.devtools('Emulation.setDeviceMetricsOverride',
            { width, height, deviceScaleFactor: 1, mobile: width < 500 }),
        // What the reader prefers: dark colors, no motion; light colors and motion by default.
        prefer({ dark = false, still = false } = {}) {
            const features = [
                { name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' },
                { name: 'prefers-reduced-motion', value: still ? 'reduce' : '' },
            ];
            return page.devtools('Emulation.setEmulatedMedia', { features });
        },
        // A picture of the whole page, and a print.
        async shot(file) {
            const options = { captureBeyondViewport: true };
            const { data } = await page.devtools('Page.captureScreenshot', options);
            writeFileSync(file, data, 'base64');
        },
        async print(file) {
            const { data } = await page.devtools('Page.printToPDF', { printBackground: false });
            writeFileSync(file, data, 'base64');
        },
        async close() {
            try {
                if (session)
                    await call('DELETE', '');
            } finally {
                driver.end();
            }
        },
    };
    try {
        await start();
    } catch (error) {
        await page.close();
        throw error;
    }
    return page;
}

// WebDriver's reference to an element is an object of one field, the id.
function idOf(element) {
    return Object.values(element)[0];
}
