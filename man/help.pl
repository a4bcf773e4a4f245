# The sections SYNOPSIS, DESCRIPTION and OPTIONS of a program's page, as Markdown, from what the program, and each
# of its commands, prints for --help.
#     perl man/help.pl build/programs/NAME
use strict;
use warnings;
my ($program) = @ARGV;
my ($name) = $program =~ m{([^/]+)$};
my $installed = 'tapegrad-' . $name =~ tr/_/-/r;
my @commands;

# As itself in Markdown; words of capitals, which stand for a value, in italics.
sub plain { $_[0] =~ s/([[:punct:]])/\\$1/gr =~ s/\bal\\\.\s(?=\d)/al\\.\\ /gr } # no sentence ends in "al. 2020"
sub marked { plain($_[0]) =~ s/\b([A-Z]{2,}|[NX])\b/*$1*/gr }

# The lines of usage, the text, and pairs of an argument, as "--layers N" or the name of a command, and its text.
sub help {
    my $pid = open(my $out, '-|') // die "fork: $!\n";
    $pid || exec { $program } $installed, @_, '--help'; # as if it were installed
    my $text = do { local $/; <$out> };
    close $out or die "$program @_ --help failed\n";
    $text =~ s/^  \Q$installed\E (?=\S)/  /mg; # before the names of commands
    $text =~ s/^usage: ((?:.+\n)+)\n// or die "$program @_ --help: expected usage: in the first line\n";
    my @usage = map { s/^\s*\Q$installed\E//r } split /\n/, $1;
    my $command = join '|', @commands;
    $text =~ s/\b\Q$name\E (?=($command)\b)/$installed /g if $command;
    my @items;
    push @items, [$1, $2] while $text =~ s/^  (\S+(?: [A-Z]+)?) +(.*\n(?: {20}.*\n)*)//m;
    return { usage => \@usage, text => $text =~ s/\n\n+/\n\n/gr =~ s/\s+$//r, items => \@items };
}
sub list { # of items
    for (@_) {
        my ($argument, $text) = @$_;
        print marked($argument) =~ s/^([^* ]+)/**$1**/r, "\n\n:   ", plain($text =~ s/\s+/ /gr), "\n\n";
    }
}

my $all = help();
@commands = $all->{usage}[0] =~ /COMMAND/ ? map { $_->[0] } @{ $all->{items} } : ();
my @helps = @commands ? map { help($_) } @commands : $all;
print "# SYNOPSIS\n\n";
print '**', plain($installed), '**', marked($_), "\n\n" for map { @{ $_->{usage} } } @helps;
print "# DESCRIPTION\n\n";
print plain($all->{text}), "\n\n" if !@commands;
list(@{ $all->{items} }) if @commands;
print "# OPTIONS\n\n";
for my $i (0 .. $#helps) {
    print "## $commands[$i]\n\n", plain($helps[$i]{text}), "\n\n" if @commands;
    list(@{ $helps[$i]{items} });
}
