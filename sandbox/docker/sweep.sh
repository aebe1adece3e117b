# Ending what a run left. All that belongs here carries DOVECOTE_TASK in its environment: runs, jobs, our own.

# hunt SESSION: kill a session and all below it but this shell and $me, without ever needing a process more.
me=
hunt() {
  hunts=0
  while [ "$hunts" -lt 300 ]; do
    hunts=$((hunts + 1))
    found=" "
    kin "" "$1"
    prey=
    for one in $found; do
      [ "$one" = $$ ] || [ "$one" = "$me" ] || prey="$prey $one"
    done
    [ -n "$prey" ] || return 0
    kill -STOP $prey
    kill -KILL $prey
  done
}

# alone KEY: whether nothing lives here but what is of KEY, and what hides to whom it belongs.
alone() {
  own=$(grep -ls "DOVECOTE_TASK=$1" /proc/[0-9]*/environ)
  others=$(grep -ls "DOVECOTE_TASK=" /proc/[0-9]*/environ)
  set -- $own
  own=" $* /proc/$$/environ "
  for place in $others; do
    case $own in *" $place "*) continue ;; esac
    [ -e "$place" ] && return 1
  done
  return 0
}

# clear_task KEY: end what is left of it. When nobody else is here, everybody but the first process and this shell
# goes, in one call that no fork outruns.
clear_task() {
  kill_members "$1" -1
  rounds=0
  while [ "$rounds" -lt 40 ]; do
    rounds=$((rounds + 1))
    set -- "$1" /proc/[0-9]*
    [ $# -le 4 ] && return 0
    alone "$1" || return 0
    kill -KILL -1
    rest 0.02
  done
  return 1
}
