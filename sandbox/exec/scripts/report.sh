# Say how a job is doing: a line "STATE CODE TRUNCATED", then its output in base64.
d=$jobs/$key
if ! told=$(readlink "$d/started"); then
  echo unknown
  exit 0
fi
code=
alive=
supervised "$d" && alive=yes
read -r code 2>/dev/null <"$d/exit"
if [ -n "$code" ]; then
  state=exited
elif [ -n "$alive" ]; then
  state=running
elif [ "${told##* }" != "$(life)" ]; then
  state=recreated
else
  state=exited
  code=137
  unrecorded=yes
fi
limit=262144
read -r limit 2>/dev/null <"$d/limit"
[ -e "$d/truncated" ] || [ "$(($(wc -c 2>/dev/null <"$d/log") + 0))" -gt "$limit" ] && truncated=yes
echo "$state ${code:--} ${truncated:-no} ${unrecorded:-no}"
tail -c "$limit" "$d/log" 2>/dev/null | base64
exit 0
