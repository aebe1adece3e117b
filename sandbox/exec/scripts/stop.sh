# End a job and wait until it has ended; ending it twice, or one nobody knows, is nothing.
d=$jobs/$key
told=$(readlink "$d/started") || exit 0
[ -e "$d/exit" ] && exit 0
supervised "$d" || exit 0
supervisor=${told%% *}
session=
for place in /proc/[0-9]*; do
  pid=${place#/proc/}
  [ "$(field "$pid" 2)" = "$supervisor" ] && [ "$(field "$pid" 4)" = "$pid" ] && session=$pid
done
end_members "$key" "${session:--1}"
rounds=0
while [ "$rounds" -lt 300 ] && supervised "$d" && [ ! -e "$d/exit" ]; do
  rest 0.02
  rounds=$((rounds + 1))
done
exit 0
