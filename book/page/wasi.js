// The system calls of a WASI program that only prints: WASI is what wasi-libc needs of its host.
// openModule returns the exports of a new instance; print(file, line) receives each line that it
// writes, file 1 or 2. A raised error of the library is a line on file 2, then a trap, which
// throws: the instance is lost, a new one works. module: a WebAssembly.Module.
function openModule(module, print) {
    const BADF = 8, SPIPE = 70, CHARACTER_DEVICE = 2; // codes of WASI
    const decoder = new TextDecoder();
    const unfinished = { 1: '', 2: '' }; // lines without their end
    let memory;

    // Memory that grows has a new buffer, so every call makes its views.
    const view = () => new DataView(memory.buffer);
    const bytes = (at, size) => new Uint8Array(memory.buffer, at, size);

    function fd_write(file, vectors, count, written) {
        if (!(file in unfinished))
            return BADF;
        let total = 0;
        for (let i = 0; i < count; i++) {
            const at = view().getUint32(vectors + 8 * i, true);
            const size = view().getUint32(vectors + 8 * i + 4, true);
            unfinished[file] += decoder.decode(bytes(at, size));
            total += size;
        }
        const lines = unfinished[file].split('\n');
        unfinished[file] = lines.pop();
        lines.forEach(line => print(file, line));
        view().setUint32(written, total, true);
        return 0;
    }

    // A terminal: then wasi-libc writes standard output line by line.
    function fd_fdstat_get(file, result) {
        bytes(result, 24).fill(0);
        view().setUint8(result, CHARACTER_DEVICE);
        return file in unfinished ? 0 : BADF;
    }

    function environ_sizes_get(count, size) { // an empty environment
        view().setUint32(count, 0, true);
        view().setUint32(size, 0, true);
        return 0;
    }

    function proc_exit(status) {
        throw Error(`the program ended with status ${status}`);
    }

    const wasi = {
        fd_write, fd_fdstat_get, environ_sizes_get, proc_exit,
        environ_get: () => 0, fd_close: () => 0, fd_seek: () => SPIPE,
    };
    const { exports } = new WebAssembly.Instance(module, { wasi_snapshot_preview1: wasi });
    memory = exports.memory;
    exports._initialize();
    return exports;
}
