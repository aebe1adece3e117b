# Start a job once: its order comes on stdin. Says `started`, `known`, or what went wrong.
umask 077
d=$jobs/$key
mkdir -p "$d" || exit 1
if [ -L "$d/started" ]; then
  echo known
  exit 0
fi
cat >"$d/order.$$" || exit 1
DOVECOTE_TASK=supervisor-$key setsid sh -c "$supervisor" supervisor "$d" "$d/order.$$" </dev/null >/dev/null 2>"$d/trouble" &
rounds=0
while [ "$rounds" -lt 500 ]; do
  [ -L "$d/started" ] && echo started && exit 0
  rest 0.02
  rounds=$((rounds + 1))
done
cat "$d/trouble" >&2
exit 1
