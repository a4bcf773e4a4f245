#!/usr/bin/env python3
"""Compares tables of measurements with the raw output beside them.

    tests/results.py PAGE...

Each number of a table's cells, but for the first column and columns named after what was not measured
here (a paper, a goal), must be a number, rounded, of one of the raw files that the table's section
links: .txt, .csv or .json files, or those of a page of bench/results. A table with a cell that is a
number must have such a link.
"""
import os
import re
import sys

NUMBER = re.compile(r'(?<![\w.-])-?(?:\d{1,3}(?: \d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?')
QUOTED = re.compile(r'paper|goal|reports', re.I)


def numbers_of(text):
    return [word.replace(' ', '') for word in NUMBER.findall(text)]


def rounding(word):
    """Half of what the last digit counts; of 12 300 that is 50, of at least three digits."""
    if 'e' in word:
        digits, power = word.split('e')
        return rounding(digits) * 10.0 ** int(power)
    if '.' in word:
        return 0.5 * 10.0 ** -len(word.split('.')[1])
    digits = word.lstrip('-')
    zeros = len(digits) - len(digits.rstrip('0'))
    return 0.5 * 10 ** max(0, min(zeros, len(digits) - 3))


def raw_numbers(path):
    with open(path) as file:
        return sorted({float(word) for word in re.findall(r'-?\d+(?:\.\d+)?(?:e[-+]?\d+)?', file.read())})


def is_rounded(word, raw):
    value, half = float(word), rounding(word) * (1 + 1e-6)
    return any(abs(value - number) <= half for number in raw)


def cells(line):
    return [cell.strip() for cell in line.strip().strip('|').split('|')]


def sections(text):
    """(line number, lines) between headings, without code."""
    found = [(1, [])]
    code = False
    for number, line in enumerate(text.split('\n'), 1):
        code ^= line.startswith('```')
        if line.startswith('#') and not code:
            found.append((number, []))
        found[-1][1].append('' if code else line)
    return found


def tables(start, lines):
    """(line number, rows) of each table."""
    rows = []
    for number, line in enumerate(lines + [''], start):
        if line.startswith('|'):
            rows.append((number, cells(line)))
        elif rows:
            yield rows
            rows = []


def outputs(text, directory):
    """The files of raw output that the text links, itself or by a page of bench/results."""
    found = []
    for link in re.findall(r'\]\(([^)#:]+)(?:#[^)]*)?\)', text):
        path = os.path.normpath(os.path.join(directory, link))
        if path.endswith(('.txt', '.csv', '.json')):
            found.append(path)
        elif path.startswith('bench/results/') and path.endswith('.md') and directory != 'bench/results':
            found += outputs(open(path).read(), 'bench/results')
    return found


def faults(page):
    for start, lines in sections(open(page).read()):
        links = outputs('\n'.join(lines), os.path.dirname(page))
        raw = sorted({n for link in links for n in raw_numbers(link)})
        for rows in tables(start, lines):
            head, body = rows[0][1], rows[2:]
            measured = [i for i, cell in enumerate(head) if i > 0 and not QUOTED.search(cell)]
            filled = [(number, row[i]) for number, row in body for i in measured if i < len(row)]
            if not links:
                if any(NUMBER.fullmatch(cell) for _, cell in filled):
                    yield f'{page}:{rows[0][0]}: no link to the raw output in this section'
                continue
            for number, cell in filled:
                for word in numbers_of(re.sub(r'`[^`]*`|\[[^]]*\]\([^)]*\)', '', cell)):
                    if not is_rounded(word, raw):
                        yield f'{page}:{number}: {word} is not in {", ".join(map(os.path.basename, links))}'


def main():
    if not sys.argv[1:]:
        sys.exit(__doc__)
    found = [fault for page in sys.argv[1:] for fault in faults(page)]
    print('\n'.join(found + [f'{len(sys.argv) - 1} pages, {len(found)} faults']))
    sys.exit(1 if found else 0)


if __name__ == '__main__':
    main()
