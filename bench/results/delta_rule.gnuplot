# gnuplot delta_rule.gnuplot, in this directory, draws delta_rule.svg from delta_rule.csv.
set terminal svg size 900,420 font 'sans-serif,13' background '#ffffff'
set output 'delta_rule.svg'
set datafile separator ','
set logscale xy 2
set xlabel 'positions N'
set xtics (512, '1k' 1024, '2k' 2048, '4k' 4096, '8k' 8192, '16k' 16384)
set xrange [450:19000]
set grid lc '#dddddd'
set border 3 lc '#555555'
set tics nomirror
set key top left reverse Left samplen 2
methods = 'tapegrad chunked recurrent'
titles = '"tapegrad" "PyTorch, chunked" "PyTorch, recurrence"'
color(i) = int(word('0x2166ac 0xe08214 0xb2182b', i))
set multiplot layout 1,2 title 'One layer of the gated delta rule, 32 heads of 128 x 128, forward and backward'
set ylabel 'time, s'
set ytics (0.031, 0.125, 0.5, 2, 8, 32)
set yrange [0.02:8000]
plot for [i=1:3] 'delta_rule.csv' using (strcol(1) eq word(methods, i) ? $2 : NaN):($4 / 1000) \
         with linespoints lw 2 pt 7 ps 0.6 lc rgb color(i) title word(titles, i), \
     '+' using (4096):(39) every ::0::0 with points pt 2 ps 1.2 lw 2 lc rgb '#333333' title 'mlx-lm, recurrence', \
     '+' using (4096):(0.56) every ::0::0 with points pt 1 ps 1.2 lw 2 lc rgb '#333333' title 'mlx-lm, chunked'
set ylabel 'memory beyond arguments, GB'
set key bottom right
set ytics (0.0156, 0.0625, 0.25, 1, 4, 16, 64)
set yrange [0.008:160]
plot for [i=1:3] 'delta_rule.csv' using (strcol(1) eq word(methods, i) ? $2 : NaN):($5 / 1000) \
         with linespoints lw 2 pt 7 ps 0.6 lc rgb color(i) notitle, \
     '+' using (4096):(108) every ::0::0 with points pt 2 ps 1.2 lw 2 lc rgb '#333333' title 'mlx-lm, with arguments', \
     '+' using (4096):(4.95) every ::0::0 with points pt 1 ps 1.2 lw 2 lc rgb '#333333' notitle
unset multiplot
