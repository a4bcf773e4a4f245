#!/usr/bin/env bash
# CITATION.cff, the SPDX document and the workflows have what their formats require. Debian has no program that
# validates the first two, so this checks required keys, allowed values and references. (make nightly PART=11)
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
python() { /usr/bin/python3 - "$@"; }

citation() {
    python CITATION.cff <<'END'
import sys, yaml
cff = yaml.safe_load(open(sys.argv[1]))
def require(truth, what):
    if not truth:
        sys.exit(what)
def persons(entry, where):
    require(entry.get('authors'), f'{where} has no authors')
    for author in entry['authors']:
        require('name' in author or 'family-names' in author, f'{where}: {author} is neither an entity nor a person')
require(str(cff.get('cff-version')) == '1.2.0', 'cff-version, expected 1.2.0')
for key in 'message', 'title':
    require(isinstance(cff.get(key), str), f'{key} is missing')
require(cff.get('type') in (None, 'software', 'dataset'), 'type, expected software or dataset')
persons(cff, 'the software')
known = set('''abstract authors cff-version commit contact date-released doi identifiers keywords license license-url
    message preferred-citation references repository repository-artifact repository-code title type url version'''.split())
require(not set(cff) - known, f'unknown keys: {set(cff) - known}')
require(isinstance(cff['version'], str), 'version is a number, expected a string')
for reference in cff.get('references', []):
    persons(reference, reference.get('title', 'a reference'))
    for key in 'type', 'title':
        require(isinstance(reference.get(key), str), f'a reference has no {key}')
END
}
check "CITATION.cff" citation

# The template as dist.sh fills it in.
spdx() {
    sed 's/@VERSION@/0.0.0/g; s/@UUID@/00000000-0000-8000-8000-000000000000/; s/@CREATED@/2026-01-01T00:00:00Z/
        s/@[A-Z]*_SHA256@/'"$(sha256sum /dev/null | cut -d ' ' -f 1)/" tapegrad.spdx.in >"$directory/spdx"
    python "$directory/spdx" <<'END'
import re, sys
lines = [line.rstrip('\n') for line in open(sys.argv[1]) if line.strip() and not line.startswith('#')]
def require(truth, what):
    if not truth:
        sys.exit(what)
for line in lines:
    require(re.match(r'[A-Z]\w+: \S', line) and '@' not in line, f'no "Tag: value": {line}')
    require(('<text>' in line) == line.endswith('</text>'), f'a text that does not end: {line}')
tags = [line.split(': ', 1) for line in lines]
first = dict(tags[:7])
require(first['SPDXVersion'] == 'SPDX-2.3' and first['DataLicense'] == 'CC0-1.0', 'expected SPDX-2.3, CC0-1.0')
require(first['SPDXID'] == 'SPDXRef-DOCUMENT', 'the document has no identifier')
require('#' not in first['DocumentNamespace'] and ':' in first['DocumentNamespace'], 'the namespace is no URI')
require({'DocumentName', 'Creator'} <= set(first), 'the document has no name or creator')
require(re.fullmatch(r'\d{4}(-\d\d){2}T\d\d(:\d\d){2}Z', dict(tags)['Created']), 'Created, expected YYYY-MM-DDThh:mm:ssZ')
identifiers = [value for tag, value in tags if tag == 'SPDXID']
require(len(identifiers) == len(set(identifiers)), 'an identifier stands twice')
require(all(re.fullmatch(r'SPDXRef-[\w.-]+', i) for i in identifiers), 'an identifier has other characters')
packages, related = [], set()
for tag, value in tags:
    if tag == 'PackageName':
        packages.append({})
    if packages and tag not in ('Relationship',):
        packages[-1][tag] = value
    if tag == 'Relationship':
        a, kind, b = value.split(' ')
        require({a, b} <= set(identifiers), f'{value}: an identifier that no package has')
        require(kind in '''DESCRIBES CONTAINS DEPENDS_ON GENERATED_FROM STATIC_LINK RUNTIME_DEPENDENCY_OF
            OPTIONAL_DEPENDENCY_OF'''.split(), f'{value}: an unknown relationship')
        related |= {a, b}
for package in packages:
    require({'SPDXID', 'PackageDownloadLocation'} <= set(package), f'incomplete: {package}')
    require(package['SPDXID'] in related, f'{package["SPDXID"]} has no relationship')
    if 'PackageFileName' in package:
        require(re.fullmatch('SHA256: [0-9a-f]{64}', package['PackageChecksum']), f'no checksum: {package}')
END
}
check "tapegrad.spdx.in" spdx

# Each step runs or uses something, an action by its major version; each job has a runner, and needs jobs that exist.
workflows() {
    python .github/workflows/*.yml <<'END'
import re, sys, yaml
for path in sys.argv[1:]:
    workflow = yaml.safe_load(open(path))
    def require(truth, what):
        if not truth:
            sys.exit(f'{path}: {what}')
    require({'name', True, 'jobs'} <= set(workflow), 'name, on or jobs is missing') # YAML 1.1 reads "on" as true
    for name, job in workflow['jobs'].items():
        require('runs-on' in job and job.get('steps'), f'{name} has no runs-on or no steps')
        needs = job.get('needs', [])
        for other in [needs] if isinstance(needs, str) else needs:
            require(other in workflow['jobs'], f'{name} needs {other}, which is no job')
        for step in job['steps']:
            require(('run' in step) != ('uses' in step), f'{name}: a step has neither run nor uses, or both: {step}')
            require(re.fullmatch(r'[\w./-]+@v\d+', step.get('uses', 'a@v1')), f'{name}: no major version: {step}')
    groups = workflow['jobs'].get('linux', {}).get('strategy', {}).get('matrix', {}).get('group')
    if groups:
        listed = re.search(r'^all_groups=\((.*)\)', open('.ci/run').read(), re.M)[1].split()
        require(sorted(groups) == sorted(listed), f'groups are {groups}, expected those of .ci/run, {listed}')
END
}
if [ -d .github ]; then check ".github/workflows" workflows; else echo "not tested: workflows, which an archive lacks"; fi
report
