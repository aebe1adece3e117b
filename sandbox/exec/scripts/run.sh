# Run one script to its end and say what came of it: a line "CODE LATE OUT ERR", stdout and stderr in base64 with a
# line of a dot between them. The environment is the arguments NAME=VALUE and nothing else. $sweeping is empty for
# programs of ours, which may leave something behind.
umask 022
d=$(mktemp -d "${TMPDIR:-/tmp}/.dovecote-run.XXXXXX") || exit 1
if ! { mkdir -p -- "$mount" && cd -- "$mount"; } 2>/dev/null; then
  rm -rf "$d"
  echo gone
  exit 0
fi
exec 3</dev/null
[ -n "$input" ] && exec 3<"$input" && rm -f "$input"
mkfifo "$d/1" "$d/2"

# Keep one byte more than the limit, so that the reader sees that there was more.
keep() {
  exec <"$1" >"$2" 2>/dev/null 3<&-
  head -c "$((limit + 1))"
  cat >/dev/null
  : >"$1.read"
}

# Kill who can write to the pipes of this run. Those who keep its output have them as their stdin.
kill_writers() {
  for file in /proc/[0-9]*/fd/[1-9]*; do
    [ "$file" -ef "$d/1" ] || [ "$file" -ef "$d/2" ] || continue
    file=${file#/proc/}
    case ${file%%/*} in "$out" | "$err") ;; *) kill -KILL "${file%%/*}" 2>/dev/null ;; esac
  done
}

(keep "$d/1" "$d/out") &
out=$!
(keep "$d/2" "$d/err") &
err=$!
setsid env -i "$@" DOVECOTE_TASK="$key" bash -c "$script" bash <&3 3<&- >"$d/1" 2>"$d/2" &
main=$!
kin=$main
[ -n "$sweeping" ] || kin=none
(
  exec </dev/null >/dev/null 2>&1 3<&-
  # The trap comes before the timer: the command may end at once. Before the timer, $! is of the outer shell.
  before=$!
  trap '[ "$!" = "$before" ] || kill "$!"; exit' TERM
  sleep "$seconds" &
  wait "$!"
  : >"$d/late"
  kill_members "$key" "$kin"
) &
watch=$!
wait "$main"
code=$?
kill "$watch" 2>/dev/null
[ -n "$sweeping" ] && kill_members "$key" "$main"
# Who has left and has no mark any more may still hold the output open, and is found by that.
rounds=0
while [ -n "$sweeping" ] && [ "$rounds" -lt 300 ] && ! { [ -e "$d/1.read" ] && [ -e "$d/2.read" ]; }; do
  rounds=$((rounds + 1))
  [ "$rounds" -lt 50 ] && continue
  kill_writers
  rest 0.02
done
wait "$out" "$err" "$watch"
late=no
[ -e "$d/late" ] && late=yes && code=137
echo "$code $late"
base64 "$d/out"
echo .
base64 "$d/err"
told=$?
# By hand: bash runs an EXIT trap also in a subshell that is killed before it has begun, and takes the output along.
rm -rf "$d"
exit "$told"
