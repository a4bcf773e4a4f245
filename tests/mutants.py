#!/usr/bin/env python3
"""Mutants: one change of one source each, which the tests must find.

    tests/mutants.py [PATTERN...]      what is not yet recorded, of files that match (default: all)
    tests/mutants.py --random COUNT    COUNT of the whole set at random: those whose keys, which are
                                       hashes, are the smallest; prints how many are killed
    tests/mutants.py --sample COUNT    a sample of what is recorded, other mutants for each commit;
                                       fails where one that is recorded as killed survives
    tests/mutants.py --count [PATTERN...]    counts them; --list prints them

The set: in every function of FILES, and every row of a table of functions there,
    operator    + for -, * for /, && for ||, == for !=, += for =, and back
    bound       < for <=, > for >=, and back
    sign        x for -x
    index       [i + 1] for [i]
    constant    2 for 1
    condition   if (!(c)) for if (c)
    term        of a sum, left out
    line        left out: an assignment or a call
but for checks of arguments and their messages, which tests of bad input have, and for what decides
about time alone: prefetching, the cost of a loop's work.

A mutant's object is compiled and linked to a shared library, with which the tests that
tests/concerns.txt names for the file then run, until one fails: those that killed other mutants of
the file, the file's rows of test_operations, then the programs, in float and in double, then under
sanitizers. Kernels of ops/cpu run on cpu, others on plain first.

build-mutants/results.jsonl has the result of each mutant, so that an interrupted run goes on;
tests/mutants.txt, which is rewritten whenever a file's mutants or those at random are complete, has
the number of killed ones and every survivor with its reason. A file's record holds as long as its
set is the same, a drawn mutant's as long as its line is. JOBS=2 mutants at a time."""
import fnmatch
import glob
import hashlib
import json
import os
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = 'build-mutants'
RECORD = 'tests/mutants.txt'
RANDOM = 'random'
FILES = ['ops/**/*.[ch]', 'ext/**/*.[ch]', 'optim/*.[ch]', 'autograd/backward.c']
LEFT_OUT = ['*/cuda/*', 'ext/*/tests/*', 'ext/*/attention.c', 'ext/*/layers.c', 'ext/*/kernels.c',
            'optim/checkpoint.c', '*/onednn.c', '*/prefetch.h', '*/kernel_list.h']
# What runs for a mutant of a file that concerns all tests.
WIDE = 'tape layers', '*'
BUILDS = {'float': ('build', ['CUDA=no']), 'double': ('build-double', ['CUDA=no', 'REAL=double']),
          'sanitized': ('build-sanitize',
                        ['CUDA=no', 'BUILD=build-sanitize', 'CFLAGS=-O1 -g -fno-omit-frame-pointer',
                         'SANITIZE=-fsanitize=address,undefined -fno-sanitize-recover=all'])}
QUICK = 'gradients_equal_finite_differences,results_equal_those_of_plain_kernels'
KILLERS = 3  # tests that run first
SHORTEST = 5  # seconds of processor time that a test may always take


# --------------------------------------------------------------------------------------- the set
def blank(match):
    return re.sub(r'[^\n]', ' ', match.group(0))


def code_of(text):
    """The text with spaces for comments, strings, checks of arguments, and loops' costs."""
    text = re.sub(r'/\*.*?\*/', blank, text, flags=re.S)
    text = re.sub(r'"[^"\n]*"', blank, text)
    check = r'if \((?:[^;{}])*?\)\s*(?:return )?(?:tape_error|error_raise|error_check)\([^;]*;'
    text = re.sub(check, blank, text)
    text = re.sub(r'\bthreads_for\([^;{]*', blank, text)
    return re.sub(r'(EACH_ROW\([^;{}\n]*?, )([^,\n]+)(\)(?: \{)?\n)',
                  lambda m: m[1] + ' ' * len(m[2]) + m[3], text)


def bodies(code):
    """Where functions' bodies and rows of tables of functions begin and end."""
    for m in re.finditer(r'^#define \w+_ROWS.*?[^\\]\n', code, re.S | re.M):
        yield m.span()
    for m in re.finditer(r'^(\w[^;={}#]*\([^;={}#]*\)\s*)\{', code, re.M):
        name = re.search(r'(\w+)\(', m[1].replace('MATH_FUNCTION', ''))
        if not name or re.search(r'check', name[1]):
            continue
        depth, end = 1, m.end()
        while depth and end < len(code):
            depth += {'{': 1, '}': -1}.get(code[end], 0)
            end += 1
        yield m.end(), end - 1


def closing(s, i):
    """The end of the bracket that opens at i."""
    close, depth = {'(': ')', '[': ']', '{': '}'}[s[i]], 0
    for j in range(i, len(s)):
        depth += (s[j] == s[i]) - (s[j] == close)
        if depth == 0:
            return j + 1
    return len(s)


def operand_end(s, i):
    """The end of the factor that begins at i: a name or a number, calls, indices and members."""
    i = re.compile(r'[-*&]?(?:\((?:Real|double|float|int|u?int\d+_t|size_t)\))?').match(s, i).end()
    i = re.compile(r'[\w.]*').match(s, i).end()
    while i < len(s) and (s[i] in '([' or s.startswith('->', i) or s[i] == '.'):
        i = closing(s, i) if s[i] in '([' else re.compile(r'(?:->|\.)\w+').match(s, i).end()
    return i


def term_end(s, i):
    end = operand_end(s, i)
    while s.startswith((' * ', ' / '), end):
        end = operand_end(s, end + 3)
    return end


OTHER = {'+': '-', '-': '+', '*': '/', '/': '*', '&&': '||', '||': '&&', '==': '!=', '!=': '==',
         '+=': '=', '-=': '+=', '*=': '=', '<': '<=', '<=': '<', '>': '>=', '>=': '>'}
TYPE = r'(?:Real|double|float|int|Vector|Tensor|u?int\d+_t|[A-Z]\w*)'
DECLARATION = rf'_Alignas|^\s*(static |const )*{TYPE} \*?\w*$'
KEPT_LINES = (r'(const|static|Real|double|float|u?int\d*(_t)?|size_t|bool|Tensor|Node|Shape|'
              r'return|continue|break|for|case|else|do|default)\b')


def changes(s):
    """(kind, start, end, replacement) of the code s of one function."""
    for m in re.finditer(r'(?<=[\w\])]) ([-+*/]|&&|\|\||==|!=|[-+*]=) (?=[\w(*&!-])', s):
        yield 'operator', m.start(1), m.end(1), OTHER[m[1]]
        if m[1] in '+-':
            yield 'term', m.start(), term_end(s, m.end()), ''
    for m in re.finditer(r' (<=|>=|<|>) ', s):
        yield 'bound', m.start(1), m.end(1), OTHER[m[1]]
    for m in re.finditer(r'(?:(?<=[(,=*/?:] )|(?<=[(\[])|(?<=return ))-(?=[a-z(])', s):
        yield 'sign', m.start(), m.end(), ''
    for m in re.finditer(r'(?<=\w)\[([^\[\]\n]+)\]', s):
        line = s[s.rfind('\n', 0, m.start()) + 1:m.start()]
        if not re.search(DECLARATION, line):
            yield 'index', m.start(1), m.end(1), f'({m[1]}) + 1'
    for m in re.finditer(r'(?<![\w.\]])1(?![\w.])', s):
        yield 'constant', m.start(), m.end(), '2'
    for m in re.finditer(r'\bif \(', s):
        end = closing(s, m.end() - 1) - 1
        if s[m.end():end].strip():
            yield 'condition', m.end(), end, f'!({s[m.end():end]})'
    for m in re.finditer(r'(?<=[;{})])\n[ ]+([^\n;{}#]+;)(?=[ ]*\n)', s):
        if not re.match(KEPT_LINES, m[1]):
            yield 'line', m.start(1), m.end(1), ';'


class Mutant:
    def __init__(self, path, text, kind, start, end, new):
        self.path, self.kind, self.start, self.end, self.new = path, kind, start, end, new
        self.line = text.count('\n', 0, start) + 1
        a, b = text.rfind('\n', 0, start) + 1, text.find('\n', end)
        self.before = ' '.join(text[a:b].split())
        self.after = ' '.join((text[a:start] + new + text[end:b]).split())

    def name(self):
        return f'{self.path}:{self.line} {self.kind}: {self.before} => {self.after}'


def mutants_of(path):
    text = open(path).read()
    code = code_of(text)
    found = {}
    for a, b in sorted(set(bodies(code))):
        for kind, start, end, new in changes(code[a:b]):
            mutant = Mutant(path, text, kind, a + start, a + end, new)
            found.setdefault((mutant.start, mutant.end, mutant.new), mutant)
    mutants, seen = [found[key] for key in sorted(found)], {}
    for mutant in mutants:  # equal lines are counted; the directory may change
        text = f'{os.path.basename(path)}|{mutant.before}|{mutant.after}'
        seen[text] = seen.get(text, 0) + 1
        mutant.key = hashlib.sha1(f'{text}|{seen[text]}'.encode()).hexdigest()[:12]
    return mutants


def digest(mutants):
    keys = ' '.join(sorted(mutant.key for mutant in mutants))
    return hashlib.sha1(keys.encode()).hexdigest()[:10]


def files_of(patterns):
    found = sorted({path for pattern in FILES for path in glob.glob(pattern, recursive=True)})

    def matches(path, patterns):
        return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)
    return [path for path in found
            if not matches(path, LEFT_OUT) and matches(path, patterns or ['*'])]


def concerned(path):
    """Test programs, and rows of test_operations or None, of a source: tests/concerns.txt."""
    for line in open('tests/concerns.txt'):
        words = line.split()
        if words and words[0] != '#' and fnmatch.fnmatch(path, words[0]):
            programs = [word for word in words[1:-1] if not word.endswith('.sh')]
            return programs, None if words[-1] == '-' else words[-1]
    return WIDE[0].split(), WIDE[1]


# ------------------------------------------------------------------------------------ the builds
class Build:
    """One build directory of the library, and its tests, linked with a shared library."""

    def __init__(self, kind):
        self.kind = kind
        self.directory, self.settings = BUILDS[kind]
        self.tests = f'{WORK}/{kind}'
        self.lock, self.timing = threading.Lock(), threading.Lock()
        self.times, self.linked = {}, set()
        version = re.search(r'TAPEGRAD_VERSION "(.*)"', open('tensor/tensor.h').read())[1]
        shared = f'{self.directory}/libtapegrad.so.{version}'
        self.make(shared)
        commands = self.make('-n', '-B', shared)
        self.compile = {m[2]: shlex.split(m[1])
                        for m in re.finditer(r'^(.* -c (\S+) -o \S+) &&', commands, re.M)}
        self.link = shlex.split(re.search(r'^.* -shared .*$', commands, re.M)[0])
        self.unchanged = f'{WORK}/unchanged-{kind}'
        os.makedirs(self.unchanged, exist_ok=True)
        shutil.copy(shared, f'{self.unchanged}/{self.soname()}')
        self.sources = {}  # of each header
        for path in self.compile:
            read = open(self.object(path)[:-2] + '.d').read().replace('\\\n', ' ')
            for name in read.split(':')[1].split():
                self.sources.setdefault(name, []).append(path)

    def soname(self):
        return re.search(r'-soname,(\S+)', ' '.join(self.link))[1]

    def make(self, *goals):
        ours = 'MAKE', 'MFLAGS', 'ONLY', 'TEST', 'OPERATION'
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        command = ['make', '--no-print-directory', *self.settings, *goals]
        run = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        if run.returncode:
            sys.exit(f'{run.stdout}\nmutants: {" ".join(command)} fails')
        return run.stdout

    def object(self, path):
        return f'{self.directory}/{path[:-2]}.o'

    def test(self, program):
        """The path of a test program that is linked with the shared library."""
        linked = f'{self.tests}/test_{program}'
        with self.lock:
            if linked not in self.linked:
                built = f'{self.directory}/tests/test_{program}'
                self.make(built)
                commands = self.make('-n', '-W', f'tests/test_{program}.c', built)
                command = re.search(rf'^.* -o {built}$', commands, re.M)[0]
                command = command.replace(f' {self.directory}/libtapegrad.a',
                                          f' {self.link[self.link.index("-o") + 1]}')
                os.makedirs(self.tests, exist_ok=True)
                command = command.replace(f'-o {built}', f'-o {linked}')
                subprocess.run(command, shell=True, check=True)
                self.linked.add(linked)
        return linked

    def library(self, worker, path):
        """Compiles the mutated file in the worker's tree, or what includes it, and links the
        library; False where it is no C."""
        changed = {}
        for source in [path] if path.endswith('.c') else self.sources.get(path, []):
            new = os.path.abspath(f'{worker}/{source.replace("/", "_")}.o')
            command = [word for word in self.compile[source] if word != '-Werror'][:-1]
            command += [new, '-w', '-O1', '-g0']
            if subprocess.run(command, cwd=f'{worker}/tree', capture_output=True).returncode:
                return False
            changed[self.object(source)] = new
        output = self.link.index('-o') + 1
        link = [changed.get(word, word) for word in self.link]
        link[output] = f'{worker}/{self.soname()}'
        subprocess.run(link, check=True)
        return True

    def run(self, worker, device, program, rows, tests, seconds):
        """None where the program's tests pass, else the first that fails."""
        environment = dict(os.environ, DEVICE=device, LD_LIBRARY_PATH=os.path.abspath(worker),
                           OMP_NUM_THREADS='2', OMP_WAIT_POLICY='passive',
                           TAPEGRAD_BUILD=self.directory)
        environment |= ({'OPERATION': rows} if rows else {}) | ({'TEST': tests} if tests else {})

        def limits():
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if self.kind != 'sanitized':
                resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        run = subprocess.run(['timeout', str(10 * seconds), self.test(program)], env=environment,
                             preexec_fn=limits, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, errors='replace')
        if run.returncode == 0:
            return None
        failed = re.search(r':[FE]:\w+:(\w+):\d+:', run.stdout)
        return failed[1] if failed else f'exit {run.returncode}'

    def seconds(self, *test):
        """The limit for a test: four times what it takes without a mutant, which it must pass."""
        with self.timing:
            if test not in self.times:
                start = time.time()
                failed = self.run(self.unchanged, *test, 3600)
                if failed:
                    sys.stderr.write(f'mutants: {" ".join(map(str, test))} fails without a mutant: '
                                     f'{failed}\n')
                    os._exit(1)
                self.times[test] = SHORTEST + int(8 * (time.time() - start))
            return self.times[test]


builds, builds_lock = {}, threading.Lock()


def build(kind):
    with builds_lock:
        if kind not in builds:
            builds[kind] = Build(kind)
        return builds[kind]


def runs(path):
    """What runs for a mutant of this file, in order: (build, device, program, rows, tests)."""
    programs, rows = concerned(path)
    orders = [('float' if '/cpu/' in path else 'double', 'cpu' if '/cpu/' in path else 'plain'),
              ('double' if '/cpu/' in path else 'float', 'cpu')]
    for kind, device in orders:
        if rows:
            yield kind, device, 'operations', rows, QUICK
    for kind, device in orders:
        for program in programs:
            yield kind, device, program, None, None
    for kind, device in orders:
        if rows and rows != '*':
            yield kind, device, 'operations', rows, None
    for device in ['cpu'] if '/cpu/' in path else ['cpu', 'plain']:
        if rows:
            yield 'sanitized', device, 'operations', rows, QUICK
        for program in programs:
            yield 'sanitized', device, program, None, None


def tree_of(worker):
    """The worker's copy of the sources."""
    tree = f'{worker}/tree'
    if not os.path.exists(tree):
        os.makedirs(tree)
        for directory in ('tensor', 'autograd', 'ops', 'nn', 'optim', 'distributed', 'ext'):
            shutil.copytree(directory, f'{tree}/{directory}')
        shutil.copy('tapegrad.h', tree)
        shutil.copy('extend.h', tree)
    return tree


def check_killers(path, used):
    """Exits unless what killed mutants of this file passes without one: the file is compiled as
    mutants are, which is not as the build does it."""
    worker, compiled = f'{WORK}/worker0', None
    tree_of(worker)
    for kind, device, program, rows, tests in runs(path):
        if f'{kind} {device} {program}' in used:
            if compiled != kind:
                build(kind).library(worker, path)
                compiled = kind
            limit = build(kind).seconds(device, program, rows, tests)
            failed = build(kind).run(worker, device, program, rows, tests, limit)
            if failed:
                sys.exit(f'mutants: {kind} {device} {program} fails with {path} as it is, compiled '
                         f'by -O1: {failed}')


killers = {}  # of each path: what killed other mutants, the latest first, as runs() has it


def try_mutant(mutant, worker):
    """What kills the mutant, 'not compiled', or None where it survives. The tests that killed the
    latest other mutants of the file run first."""
    tree = tree_of(worker)
    text = open(mutant.path).read()
    compiled, latest = None, killers.setdefault(mutant.path, [])
    try:
        with open(f'{tree}/{mutant.path}', 'w') as file:
            file.write(text[:mutant.start] + mutant.new + text[mutant.end:])
        for kind, device, program, rows, tests in latest[:KILLERS] + list(runs(mutant.path)):
            used = build(kind)
            limit = used.seconds(device, program, rows, tests)
            if compiled != kind:
                if not used.library(worker, mutant.path):
                    return 'not compiled'
                compiled = kind
            failed = used.run(worker, device, program, rows, tests, limit)
            if failed:
                if not failed.startswith('exit'):
                    killer = kind, device, program, rows, failed
                    latest[:] = [killer] + [other for other in latest if other != killer]
                return f'{kind} {device} {program} {failed}'
        return None
    finally:
        with open(f'{tree}/{mutant.path}', 'w') as file:
            file.write(text)


# ------------------------------------------------------------------------------------ the record
def results():
    try:
        return {r['key']: r for r in map(json.loads, open(f'{WORK}/results.jsonl'))}
    except FileNotFoundError:
        return {}


HEAD = '''# What mutants of each file survive its tests (tests/mutants.py): the file, a digest of its
# mutants, how many of those that compile are killed; then each survivor: its line, the line that
# replaces it, and why no test need find it ("equal": no result differs; "rounding": results differ
# in rounding; "speed": in time alone), or "?" where nobody has judged it yet. Of the mutants that
# --random draws: how many are drawn, and the keys of the killed ones.

'''


class Record:
    """What is recorded of a file, or of those at random: the digest, or how many are drawn; the
    counts, {(before, after): reason} of the survivors, and keys of killed ones at random."""

    def __init__(self, mark, counts):
        self.mark, self.counts, self.survivors, self.killed = mark, counts, {}, []


def read_record():
    """{path or RANDOM: Record}"""
    record, path = {}, None
    for line in open(RECORD) if os.path.exists(RECORD) else []:
        if line.startswith(('#', '\n')):
            continue
        if not line.startswith(' '):
            path, mark, counts = line.split(None, 2)
            record[path] = Record(mark, counts.strip())
        elif '  =>  ' in line:
            before, after, reason = line.strip().split('  =>  ')
            record[path].survivors[before, after] = reason
        else:
            record[path].killed += line.split()
    return record


def write_record(path, mark, mutants, outcome):
    """outcome: {key: what killed the mutant, None where it survived}"""
    record = read_record()
    reasons = {k: v for old in record.values() for k, v in old.survivors.items()}
    compiled = [m for m in mutants if outcome[m.key] != 'not compiled']
    survivors = [m for m in compiled if outcome[m.key] is None]
    new = Record(mark, f'{len(compiled) - len(survivors)} of {len(compiled)}')
    new.survivors = {(m.before, m.after): reasons.get((m.before, m.after), '?') for m in survivors}
    if path == RANDOM:
        new.killed = [m.key for m in compiled if outcome[m.key]]
    record[path] = new
    with open(RECORD + '.new', 'w') as file:
        file.write(HEAD)
        for name in sorted(name for name in record if name == RANDOM or os.path.exists(name)):
            old = record[name]
            file.write(f'{name} {old.mark} {old.counts}\n')
            for (before, after), reason in old.survivors.items():
                file.write(f'    {before}  =>  {after}  =>  {reason}\n')
            for i in range(0, len(old.killed), 7):
                file.write(f'    {" ".join(old.killed[i:i + 7])}\n')
    os.replace(RECORD + '.new', RECORD)


class Workers:
    """Tries mutants, as many at a time as JOBS says."""

    def __init__(self):
        self.jobs = int(os.environ.get('JOBS', 2))
        self.free = list(range(self.jobs))
        self.lock = threading.Lock()
        for old in glob.glob(f'{WORK}/worker*'):
            shutil.rmtree(old)

    def try_all(self, mutants, done):
        """Calls done(mutant, what killed it, seconds) for each."""
        def one(mutant):
            with self.lock:
                number = self.free.pop()
            start = time.time()
            killed = try_mutant(mutant, f'{WORK}/worker{number}')
            with self.lock:
                self.free.append(number)
                done(mutant, killed, time.time() - start)
        with ThreadPoolExecutor(self.jobs) as pool:
            for future in [pool.submit(one, mutant) for mutant in mutants]:
                future.result()


def report(mutant, killed):
    print(f'{"SURVIVES" if killed is None else killed:60} {mutant.name()}', flush=True)


def try_unknown(workers, mutants, known):
    """Tries those that are not in known, and adds their results to it and to the file."""
    def done(mutant, killed, seconds):
        known[mutant.key] = {'key': mutant.key, 'killed': killed, 'seconds': round(seconds, 2),
                             'mutant': mutant.name()}
        with open(f'{WORK}/results.jsonl', 'a') as file:
            file.write(json.dumps(known[mutant.key]) + '\n')
        report(mutant, killed)
    os.makedirs(WORK, exist_ok=True)
    workers.try_all([m for m in mutants if m.key not in known], done)


def run_files(patterns):
    known, record, workers = results(), read_record(), Workers()
    slow = {path for path in files_of(patterns) if concerned(path)[1] == '*'}
    for path in sorted(files_of(patterns), key=lambda path: path in slow):
        mutants = mutants_of(path)
        if not mutants or (path in record and record[path].mark == digest(mutants)):
            continue
        try_unknown(workers, mutants, known)
        used = {known[m.key]['killed'] for m in mutants} - {None, 'not compiled'}
        check_killers(path, {' '.join(killer.split()[:3]) for killer in used})
        outcome = {m.key: known[m.key]['killed'] for m in mutants}
        write_record(path, digest(mutants), mutants, outcome)
        print(f'== {path}: {read_record()[path].counts} killed', flush=True)


def run_random(count):
    mutants = [m for path in files_of([]) for m in mutants_of(path)]
    drawn = sorted(mutants, key=lambda m: m.key)[:count]
    known = results()
    try_unknown(Workers(), drawn, known)
    write_record(RANDOM, count, drawn, {m.key: known[m.key]['killed'] for m in drawn})
    compiled = [m for m in drawn if known[m.key]['killed'] != 'not compiled']
    survivors = [m for m in compiled if known[m.key]['killed'] is None]
    for mutant in survivors:
        report(mutant, None)
    print(f'mutants: {len(drawn)} of {len(mutants)} at random, {len(compiled)} compile, '
          f'{len(compiled) - len(survivors)} are killed')


def run_sample(count):
    commit = subprocess.run(['git', 'rev-parse', 'HEAD'], capture_output=True, text=True).stdout
    recorded, failed, record = [], [], read_record()
    drawn = set(record[RANDOM].killed) if RANDOM in record else set()
    for path in files_of([]):
        mutants, old = mutants_of(path), record.get(path)
        if old and old.mark == digest(mutants):
            recorded += [m for m in mutants if (m.before, m.after) not in old.survivors]
        else:
            recorded += [m for m in mutants if m.key in drawn]

    def done(mutant, killed, seconds):
        report(mutant, killed)
        if killed is None:
            failed.append(mutant)
    sample = random.Random(commit).sample(recorded, min(count, len(recorded)))
    Workers().try_all(sample, done)
    print(f'mutants: {len(sample) - len(failed)} of {len(sample)} are killed; all are in {RECORD}, '
          f'which has {len(recorded)} as killed')
    sys.exit(1 if failed else 0)


def main():
    os.chdir(ROOT)
    arguments = sys.argv[1:]
    if arguments[:1] in (['--count'], ['--list']):
        sets = {path: mutants_of(path) for path in files_of(arguments[1:])}
        for path, mutants in sets.items():
            if arguments[0] == '--list':
                print('\n'.join(mutant.name() for mutant in mutants))
            else:
                print(f'{len(mutants):6} {path}')
        print(f'{sum(map(len, sets.values())):6} mutants')
    elif arguments[:1] in (['--sample'], ['--random']) and len(arguments) == 2 and \
            arguments[1].isdigit():
        {'--sample': run_sample, '--random': run_random}[arguments[0]](int(arguments[1]))
    elif any(a.startswith('-') for a in arguments):
        sys.exit(__doc__)
    else:
        run_files(arguments)


if __name__ == '__main__':
    main()
