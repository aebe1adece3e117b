# Functions of everything that looks after jobs. POSIX sh; needs /proc and the usual small programs.
# A job's directory holds
#   started     a link whose text is "PID TICKS BOOT" of the supervisor: made by one call, by one process
#   log         the last bytes of the output, at most twice `limit`; `truncated` beside it when there was more
#   rests       there if the job does not keep the box awake
#   exit        the exit code, put there whole when nothing of the job lives any more
# What belongs to a job carries DOVECOTE_TASK=KEY in its environment, or is of its session, or descends from either.
# What looks after it carries DOVECOTE_TASK=supervisor-KEY.

# field PID N: the N-th word of a process's status after its name (state 1, parent 2, session 4, start 20).
field() {
  status=
  read -r status 2>/dev/null <"/proc/$1/stat" || return 0
  wanted=$2
  set -- ${status##*) }
  case $1 in Z | X) return 0 ;; esac
  shift $((wanted - 1))
  printf %s "$1"
}

# Which life of this box it is: the kernel's, and of its first process.
life() {
  kernel=
  read -r kernel 2>/dev/null </proc/sys/kernel/random/boot_id || :
  printf %s:%s "$kernel" "$(field 1 20)"
}

# members KEY SESSION: the live processes of a job, this shell never among them. With `none` as the session only those
# with the mark: a program of ours ends without the supervisors that it has started.
members() {
  found=" "
  self=$$
  read -r self _ </proc/self/stat # a substitution's own shell has the same environment
  for file in $(grep -ls "DOVECOTE_TASK=$1" /proc/[0-9]*/environ 2>/dev/null); do
    file=${file#/proc/}
    case ${file%/environ} in $$ | "$self") ;; *) found="$found${file%/environ} " ;; esac
  done
  [ "$2" = none ] || kin "$1" "$2"
  living=
  for one in $found; do
    [ -n "$(field "$one" 1)" ] && living="$living $one"
  done
  printf %s "$living"
}

# Add to $found who is of session $2 or descends from somebody found, until nobody is added.
kin() {
  added=yes
  while [ -n "$added" ]; do
    added=
    for place in /proc/[0-9]*; do
      pid=${place#/proc/}
      case $found in *" $pid "*) continue ;; esac
      status=
      read -r status 2>/dev/null <"$place/stat" || continue
      set -- "$1" "$2" ${status##*) }
      case $3 in Z | X) continue ;; esac
      related=
      [ "$6" = "$2" ] && related=yes
      case $found in *" $4 "*) related=yes ;; esac
      [ -n "$related" ] && found="$found$pid " && added=yes
    done
  done
}

# rest SECONDS: sleep, a whole second where sleep knows no fractions.
rest() { sleep "$1" 2>/dev/null || sleep 1; }

# kill_members KEY SESSION: until nobody is left, though they may be forking; fails when they fork on and on.
# One that is just becoming another program has no environment at that moment, so nobody is looked for twice.
kill_members() {
  rounds=0
  absent=
  while [ "$rounds" -lt 100 ]; do
    if ! left=$(members "$1" "$2"); then # no room for one more process: nobody has been looked for
      absent=
      rounds=$((rounds + 1))
      continue
    fi
    if [ -z "$left" ]; then
      [ -n "$absent" ] && return 0
      absent=yes
      rest 0.01
      continue
    fi
    absent=
    kill -STOP $left 2>/dev/null
    kill -KILL $left 2>/dev/null
    rounds=$((rounds + 1))
    [ "$rounds" -gt 3 ] && rest 0.02
  done
  return 1
}

# Put the whole seconds since the machine's start into $uptime; 0 where /proc does not have them.
clock() {
  uptime=
  read -r uptime _ 2>/dev/null </proc/uptime || :
  uptime=${uptime%%.*}
  uptime=${uptime:-0}
}

# end_members KEY SESSION: TERM, and five to six seconds later KILL. On a busy machine each round takes long.
# With nobody there it does nothing: who appears later is asked by TERM first, when it is called again.
end_members() {
  left=$(members "$1" "$2")
  [ -n "$left" ] || return 0
  kill -TERM $left 2>/dev/null
  clock
  deadline=$((uptime + 6))
  rounds=0
  while [ "$rounds" -lt 100 ] && [ "$uptime" -lt "$deadline" ] && [ -n "$(members "$1" "$2")" ]; do
    rest 0.05
    clock
    rounds=$((rounds + 1))
  done
  kill_members "$1" "$2"
}

# supervised DIRECTORY: whether the job's supervisor lives.
supervised() {
  told=$(readlink "$1/started") || return 1
  set -- $told
  [ -n "$2" ] && [ "$(field "$1" 20)" = "$2" ] && [ "$3" = "$(life)" ]
}
