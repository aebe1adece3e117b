# Ending what a run left. All that belongs here carries DOVECOTE_TASK in its environment: runs, jobs, our own.

# kill_found FUNCTION ARGUMENTS…: kill whom a function puts into $prey, without ever needing a process more.
# Those who fork all the time can all be newer than one look: only after two in vain is nobody left.
kill_found() {
  hunts=0
  absent=
  while [ "$hunts" -lt 300 ]; do
    hunts=$((hunts + 1))
    prey=
    "$@"
    if [ -z "$prey" ]; then
      [ -n "$absent" ] && return 0
      absent=yes
      continue
    fi
    absent=
    kill -STOP $prey
    kill -KILL $prey
  done
}

# hunt SESSION: kill a session and all below it but this shell and $me.
me=
hunt() {
  kill_found find_session "$1"
}

find_session() {
  found=" "
  kin "" "$1"
  for one in $found; do
    [ "$one" = $$ ] || [ "$one" = "$me" ] || prey="$prey $one"
  done
}

# alone KEY: whether nothing lives here but what is of KEY, and what hides to whom it belongs. What the engine
# starts has no parent here; while such a one comes in, nobody is alone.
alone() {
  for place in /proc/[0-9]*; do
    read -r status 2>/dev/null <"$place/stat" || continue
    set -- "$1" ${status##*) }
    case ${place#/proc/} in 1 | $$) continue ;; esac
    [ "$3" = 0 ] && return 1
  done
  own=$(grep -ls "DOVECOTE_TASK=$1" /proc/[0-9]*/environ)
  others=$(grep -ls "DOVECOTE_TASK=" /proc/[0-9]*/environ)
  set -- "$1" $own
  own=" $* /proc/$$/environ "
  for place in $others; do
    case $own in *" $place "*) continue ;; esac
    grep -qs "DOVECOTE_TASK=$1" "$place" && continue # forked after the first look
    [ -e "$place" ] && return 1
  done
  return 0
}

# Set $found to everybody whose parents are gone, and all below them; the first process's own child is none of them.
strays() {
  found=" "
  for place in /proc/[0-9]*; do
    read -r status 2>/dev/null <"$place/stat" || continue
    set -- ${status##*) }
    case $1 in Z | X) continue ;; esac
    [ "$2" = 1 ] && [ "$4" != 1 ] && found="$found${place#/proc/} "
  done
  kin "" -1
}

# clear_task KEY: end what is left of it, and all strays when nobody else is here. Of a program of ours, in mode `keep`,
# only what carries its mark is ended: the supervisors that it has started live on.
clear_task() {
  case $1 in
    keep-*) kill_members "$1" none; return ;;
  esac
  kill_members "$1" -1 || return 1
  rounds=0
  while [ "$rounds" -lt 200 ]; do
    rounds=$((rounds + 1))
    set -- "$1" /proc/[0-9]*
    [ $# -le 4 ] && return 0
    alone "$1" || return 0
    strays
    [ "$found" = " " ] && return 0
    kill -STOP $found
    kill -KILL $found
  done
  return 1
}

# kill_writers PID: kill all but PID and this shell who can write to the output of the run that the engine started as
# PID. Who has left and has no mark any more is found by that; a result does not come before its output is closed.
# While a script runs, its shell has the pipe of stderr as 2, else as 3.
kill_writers() {
  held=
  for file in "/proc/$1/fd/1" "/proc/$1/fd/2" "/proc/$1/fd/3"; do
    [ -p "$file" ] && held="$held $file"
  done
  kill_found find_writers "$1"
}

find_writers() {
  for file in /proc/[0-9]*/fd/[0-9]*; do
    same=
    for one in $held; do
      [ "$file" -ef "$one" ] && same=yes
    done
    [ -n "$same" ] || continue
    file=${file#/proc/}
    case ${file%%/*} in "$1" | $$) ;; *) prey="$prey ${file%%/*}" ;; esac
  done
}

# clear_run KEY: from outside, end a run and what is left of it. Its first process is halted until its output is closed.
clear_run() {
  case $1 in
    keep-*) ;;
    *)
      for place in $(grep -ls "DOVECOTE_TASK=$1" /proc/[0-9]*/environ); do
        place=${place%/environ}
        read -r status 2>/dev/null <"$place/stat" || continue
        set -- "$1" ${status##*) }
        [ "$3" = 0 ] && kill -STOP "${place#/proc/}" && kill_writers "${place#/proc/}"
      done
      ;;
  esac
  clear_task "$1"
}
