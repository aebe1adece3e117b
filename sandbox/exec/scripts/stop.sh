# End a job and wait until it has ended; ending it twice, or one nobody knows, is nothing.
d=$jobs/$key
told=$(readlink "$d/started") || exit 0
[ -e "$d/exit" ] && exit 0
supervised "$d" || exit 0
supervisor=${told%% *}

# session: the command's session, which begins when the supervisor has started it; -1 until then.
session() {
  for place in /proc/[0-9]*; do
    pid=${place#/proc/}
    [ "$(field "$pid" 2)" = "$supervisor" ] && [ "$(field "$pid" 4)" = "$pid" ] && printf %s "$pid" && return
  done
  printf -- -1
}

# The supervisor may be about to start the command, which nobody can find yet: end what there is until all is over.
clock
latest=$((uptime + 13))
tries=0
while [ "$tries" -lt 300 ] && [ "$uptime" -le "$latest" ] && supervised "$d" && [ ! -e "$d/exit" ]; do
  end_members "$key" "$(session)"
  rest 0.02
  clock
  tries=$((tries + 1))
done
exit 0
