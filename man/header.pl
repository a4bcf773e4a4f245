# What comments of headers say, as Markdown.
#     perl man/header.pl summary HEADER...      each header and the first sentence of its first comment
#     perl man/header.pl tutorial tapegrad.h    the list of words with which the tutorial explains its program, and
#                                               the paragraphs between that and the program's own operation
use strict;
use warnings;
sub plain { $_[0] =~ s/([[:punct:]])/\\$1/gr }
# Lines of the file's first comment, without its marks.
sub comment {
    open my $in, '<', $_[0] or die "$_[0]: $!\n";
    my $text = do { local $/; <$in> };
    $text =~ m{^/\* (.*?)\s*\*/}s or die "$_[0]: expected a comment in its first line\n";
    return $1 =~ s/^ \* ?//mgr . "\n";
}
my ($what, @headers) = @ARGV;
if ($what eq 'summary') {
    for my $header (@headers) {
        my $text = comment($header) =~ s{^\w+/: }{}r; # its directory
        my ($sentence) = $text =~ /^(.*?)(?:\.(?=\s+[A-Z]|\s*$)|:(?=\n\n|\n {4}))/s or die "$header: expected a sentence first\n";
        $sentence =~ s/ \([^()]*\)//g;
        print '**', plain($header), "**\n\n:   ", plain($sentence =~ s/\s+/ /gr), "\n\n";
    }
    exit;
}
my $list = qr/^\w+ {2,}\S.*\n(?:(?:\w+)? {2,}\S.*\n)+\n/m;
comment(@headers) =~ /($list)(.*?)^An operation of your own/ms or die "@headers: expected a list of words, then An operation of your own\n";
my ($words, $text) = ($1, $2);
print "**$1**\n\n:   ", plain($2 =~ s/\s+/ /gr), "\n\n" while $words =~ /^(\w+) +(\S.*\n(?: +\S.*\n)*)/mg;
print plain($text);
