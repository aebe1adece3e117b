# Tell the gateway how the job of directory $d ended. The token goes through pipes and files of ours alone.

tell() {
  waited=0
  pause=2 # tenths of a second
  while :; do
    case $(attempt 2>/dev/null) in
      2?? | 40[0-79] | 41? | 42[0-46-8] | 4[3-9]? | none) return 0 ;;
    esac
    [ "$waited" -ge "$((patience * 10))" ] && return 0
    rest "$((pause / 10)).$((pause % 10))"
    waited=$((waited + pause))
    [ "$pause" -lt 50 ] && pause=$((pause * 2))
  done
}

attempt() {
  if command -v python3 >/dev/null; then
    printf '%s\n' "$socket" "$url" "$route" "$token" "$code" | python3 -I -S -c "$poster" "$d/log" "$limit"
  elif command -v curl >/dev/null; then
    body >"$d/body"
    printf 'header = "Authorization: Bearer %s"\n' "$token" |
      curl -q -K - -s -o /dev/null -w '%{http_code}' --noproxy '*' --max-time 20 ${socket:+--unix-socket "$socket"} \
        -H 'Content-Type: application/json' --data-binary "@$d/body" "${url:-http://gateway}$route"
  elif [ -z "$socket" ] && wget --version 2>/dev/null | grep -q GNU; then
    body >"$d/body"
    printf 'header = Authorization: Bearer %s\n' "$token" >"$d/wgetrc"
    wget --config="$d/wgetrc" --no-proxy -S -O /dev/null -T 20 -t 1 --header='Content-Type: application/json' \
      --post-file="$d/body" "$url$route" 2>&1 | sed -n 's/^ *HTTP\/[0-9.]* \([0-9]*\).*/\1/p' | tail -n 1
  else
    echo none
  fi
}

# Without python the output is told in ASCII, anything else as a question mark.
body() {
  text=$(tail -c "$limit" "$d/log" | LC_ALL=C tr -c '\11\12\15\40-\176' '?' |
    LC_ALL=C sed 's/\\/\\\\/g; s/"/\\"/g; s/	/\\t/g; s/\r/\\r/g; s/$/\\n/' | tr -d '\12')
  [ -n "$(tail -c 1 "$d/log")" ] && text=${text%??}
  more=
  [ -e "$d/truncated" ] || [ "$(($(wc -c <"$d/log") + 0))" -gt "$limit" ] && more=', "truncated": true'
  printf '{"exit_code": %s, "output": "%s"%s}' "$code" "$text" "$more"
}
