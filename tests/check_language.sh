#!/usr/bin/env bash
# Reports phrases that CONTRIBUTING.md replaces by the field's terms, in all Markdown pages and
# sources, sentences of docs/ with two colons, and lines of sources that exceed 100 columns.
#   tests/check_language.sh [FILE...]   only these files
set -u
cd "$(dirname "$0")/.." || exit 2

files=${*:-$(tests/files.sh '*.md' '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')}

# In pages, fenced code, `code` and text between <!-- quoted --> and <!-- end quoted --> is ignored.
# A space in a pattern also matches a line break with the next line's indentation or comment marker.
exec perl - $files <<'PERL'
use strict;
use warnings;
my @phrases = grep { /\S/ } split /\n/, <<'END';
\b(?:a|one|an) (?:number|length|warp|thread|block|draw|counter|kernel|feature|element|row|lane|call|product) an? [a-z]+
\b(?:bytes|images|kernels|milliseconds|microseconds|numbers|operations|passes|pixels|seconds|switch|tokens) an? [a-z]+
\bso many\b
\bas many\b
\bnumbers of (?:a|an|the|its|each|every) tensors?\b
\bnot-a-numbers?\b
\bno numbers\b
\bask(?:s|ed|ing)? for\b
\bg(?:ive|ives|iven|iving|ave) (?:[a-z]+ ){0,3}?back\b
\b(?:nearest|first|second) cache\b
\bmemory is far\b
\btak(?:e|es|en|ing) memory\b
\bwhere it is put\b
\bkept (?:from the forward|for the backward) pass\b
\bgo(?:es|ing)? over\b
\bt(?:ells?|old|elling)\b
\bl(?:ie|ies|ay|ying|aid) (?:at|side by side|end to end)\b
\b(?:in|into|has|have|leaves?) room\b
\bwants? (?:a |no |the |its |this )?gradients?\b
\bgradients? (?:is|are|that are) wanted\b
\bslopes?\b
\bthrough the map\b
\bgo(?:es|ing)? through\b
\bghat\b
\bg~
\bwalk(?:s|ed|ing)?\b
\bscan_back\b
\blast(?:_| )to(?:_| )first\b
\breverse scan\b
\bborders\b
\bgreat (?:heads?|states?)\b
\bremember(?:s|ed|ing)?\b
\bgo(?:es|ing)? on from\b
\b(?:few|many) sequences\b
\bmeet_keys\b
\bweigh(?:s|ed|ing)?\b
\btrouble\b
\bwhat is wrong with\b
\bl(?:ay|ays|aid|aying) out\b
\blays? (?:[a-z]+ ){1,3}out\b
\bof a type's elements\b
\bstep's numbers\b
\b(?:made )?anew\b
\bgo(?:es|ing)? backward\b
\bwent backward\b
\bmisshapen\b
\bbuilds? with double\b
\w*(?:colour|behaviour|neighbour|favour)\w*
\w*(?:recogn|initial|normal|parallel|general|serial|vector|token|optim|minim|maxim|summar|organ)is(?:e|es|ed|ing|er|ers|ation)\b
\b(?:grey|centre[sd]?)\b
\b[A-Za-z~]+_[a-zT][-+]1\b
(?-i:\bL_[ij]\b)
\bi, f, g, o\b
(?:^|[.:;] |\n\n)(?-i:What|Of what|Of these) (?!is there|there is)
END
binmode STDOUT, ':encoding(UTF-8)';
my $found = 0;
for my $file (@ARGV) {
    open my $in, '<:encoding(UTF-8)', $file or die "$file: $!\n";
    my $text = do { local $/; <$in> };
    my $blank = sub { (my $lines = $_[0]) =~ s/[^\n]/\t/g; $lines };
    if ($file =~ /\.md$/) {
        $text =~ s/(<!-- quoted -->.*?<!-- end quoted -->)/$blank->($1)/gse;
        $text =~ s/^(```.*?^```)$/$blank->($1)/gsme;
        $text =~ s/(`[^`]*`)/$blank->($1)/gse;
        # Prose: without links, brackets, tables, code and headings; a list's item begins a sentence.
        (my $prose = $file =~ m{\bdocs/[^/]*$} ? $text : '') =~ s/(\([^()]*\))/$blank->($1)/gse;
        $prose =~ s/^( *\|.*| {4}.*|#.*)$/$blank->($1)/gme;
        my $line = 1;
        for (split /(?<=[.!?])(?=[ \n]+[*]*[A-Z\t\[])|(?=\n\s*(?:\n|- |\d+\. ))/, $prose) {
            my $colons = () = /:(?=\s|\*)/g;
            print "$file:", $line + (/^(\s+)/ ? $1 =~ tr/\n// : 0), ": a sentence with two colons\n"
                if $colons > 1 and ++$found;
            $line += tr/\n//;
        }
    } else {
        my $number = 0;
        for my $line (split /\n/, $text) {
            $number++;
            next if length $line <= 100;
            print "$file:$number: ", length $line, " columns, expected at most 100\n";
            $found++;
        }
    }
    for my $phrase (@phrases) {
        (my $pattern = $phrase) =~ s{ }{(?: |\\s*\\n[ \\t>]*(?:\\*(?!/)|//|#)? *)}g;
        while ($text =~ /$pattern/gi) {
            my ($match, $line) = ($&, 1 + (substr($text, 0, $-[0]) =~ tr/\n//));
            $match =~ s/^\s+|\s+$//g;
            $match =~ s/\s+/ /g;
            print "$file:$line: \"$match\": see the vocabulary in CONTRIBUTING.md\n";
            $found++;
        }
    }
}
exit($found ? 1 : 0);
PERL
