# Receive PLACE PROGRAM-BYTES INPUT-BYTES POD: a program and its input arrive on stdin, one after the other. They
# become files of this user alone; then the program runs. What arrives incomplete does not run, nor does anything in
# another pod of the same name: its files are others.
[ "$DOVECOTE_POD" = "$4" ] || exit 113
umask 077
mkdir "$1" || exit 125
head -c "$(($2 + $3))" >"$1/all"
if [ "$(($(wc -c <"$1/all")))" != "$(($2 + $3))" ]; then
  rm -rf "$1"
  exit 125
fi
head -c "$2" "$1/all" >"$1/program"
tail -c "$3" "$1/all" >"$1/input"
rm "$1/all"
sh "$1/program" </dev/null
code=$?
rm -rf "$1"
exit "$code"
