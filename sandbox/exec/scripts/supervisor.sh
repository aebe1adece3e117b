# A job's own supervisor: DIRECTORY ORDER. Outlives whoever started it, sees the command through, tells of its end.
umask 077
d=$1
key=${d##*/}
. "$2"
rm -f "$2"
[ -n "$rests" ] && : >"$d/rests"
ln -s "$$ $(field $$ 20) $(life)" "$d/started" 2>/dev/null || exit 0
printf '%s\n' "$limit" >"$d/limit"

trim() {
  tail -c "$limit" "$d/log" >"$d/log.new" && mv -f "$d/log.new" "$d/log"
  : >"$d/truncated"
  size=$limit
}

# Append what comes as it comes; never keep more than twice the limit. Without room the rest is dropped.
keep() {
  size=0
  while :; do
    told=$(LC_ALL=C dd bs=65536 count=1 2>&1 >>"$d/log") || { : >"$d/truncated"; cat >/dev/null; break; }
    case $told in "0+0 "*) break ;; esac
    set -- ${told##*out}
    case $1 in '' | *[!0-9]*) set -- 65536 ;; esac
    size=$((size + $1))
    [ "$size" -gt $((2 * limit)) ] && trim
  done
  [ "$size" -gt "$limit" ] && trim
}

: >"$d/log"
mkfifo "$d/pipe"
keep <"$d/pipe" &
keeper=$!
umask 022 # the files of a job are as those of a command
DOVECOTE_TASK=$key setsid bash -c "$script" bash </dev/null >"$d/pipe" 2>&1 &
main=$!
umask 077
watch=
if [ "$timeout" != 0 ]; then
  # A process that is just becoming the command belongs to nobody yet: again until it is gone.
  (rest "$timeout"; while [ -n "$(field "$main" 1)" ]; do end_members "$key" "$main"; rest 0.05; done) &
  watch=$!
fi
wait "$main"
code=$?
[ -n "$watch" ] && kill -KILL "$watch" 2>/dev/null
kill_members "$key" "$main"
(rest 5; kill -KILL "$keeper") 2>/dev/null &
wait "$keeper" 2>/dev/null
rm -f "$d/pipe"
printf '%s\n' "$code" >"$d/exit.new" && mv -f "$d/exit.new" "$d/exit"
trap '' TERM
kill -TERM 0 2>/dev/null
[ -n "$route" ] && tell
rm -f "$d/body" "$d/wgetrc"
exit 0
