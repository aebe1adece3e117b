# One run: MODE SCRIPT STDIN-BYTES NAMES-TO-UNSET…. When the script has ended, all that it started is ended; when
# the gateway's connection ends before it, the script is ended. With mode `keep` it is a program of ours that may
# leave something running.
mode=$1
script=$2
length=$3
shift 3
exec 3>&2 4<&0 2>/dev/null </dev/null
[ $# = 0 ] || unset -v "$@"
if [ "$mode" = keep ]; then
  head -c "$length" <&4 | bash -c "$script" bash 2>&3 3>&- 4<&-
  exit
fi

# Hand the input on to its last byte, read or not: an engine waits for that. Then watch the connection.
feed() {
  exec 3>&-
  if [ "$length" != 0 ]; then
    head -c "$length" <&4 | {
      cat
      cat >/dev/null
    }
    : >"$pipe.fed"
  fi
  exec >/dev/null
  cat <&4
  read -r me _ </proc/self/stat
  hunt $$
}

if [ "$length" = 0 ]; then
  feed >/dev/null &
  bash -c "$script" bash 2>&3 3>&- 4<&-
else
  pipe=/tmp/.input.$$
  mkfifo "$pipe"
  feed >"$pipe" &
  bash -c "$script" bash <"$pipe" 2>&3 3>&- 4<&-
fi
code=$?
while [ "$length" != 0 ] && [ ! -e "$pipe.fed" ] && kill -0 $!; do rest 0.01; done
trap 'exit 137' EXIT # without room for one more process the shell ends here, and the gateway looks after the rest
hunt $$
[ "$length" = 0 ] || rm -f "$pipe" "$pipe.fed"
set -- /proc/[0-9]*
[ $# -le 3 ] || {
  clear_task "$DOVECOTE_TASK"
  kill_writers $$
}
trap - EXIT
exit $code
