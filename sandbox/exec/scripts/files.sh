# One thing done with a workspace's files, by names below $root. POSIX sh and the usual small programs.
# A directory is entered before anything in it is touched, and then named by nothing but `.`: whoever swaps what
# leads there swaps too late. Exit codes: 40 no workspace, 44 not found, 45 a directory, 46 not a directory,
# 47 leads out, 48 not permitted, 49 no regular file, 50 exists, 51 the operation failed, 52 cut short.
umask 022

begin() {
  cd -P -- "$root" 2>/dev/null || exit 40
  top=$(pwd -P)
}

beneath() {
  case $(pwd -P)/ in "$top"/*) ;; *) exit 47 ;; esac
}

# Why the name $1 cannot be used as it should.
why() {
  [ -L "$1" ] && [ ! -e "$1" ] && exit 47
  [ -e "$1" ] || exit 44
  [ -d "$1" ] || exit 46
  exit 48
}

step() {
  cd -P -- "./$1" 2>/dev/null || why "./$1"
  beneath
}

make() {
  [ -e "./$1" ] || [ -L "./$1" ] || mkdir -- "./$1" 2>/dev/null || [ -d "./$1" ] || denied
  step "$1"
}

denied() {
  [ -w . ] || exit 48
  exit 51
}

# Go where the link $name leads, and set $name to what it is called there.
follow() {
  hops=0
  while [ -L "./$name" ]; do
    hops=$((hops + 1))
    [ "$hops" -gt 32 ] && exit 47
    to=$(readlink "./$name" && echo .)
    to=${to%??}
    name=${to##*/}
    case $to in
      */*) cd -P -- "${to%/*}/" 2>/dev/null || exit 44 ;;
    esac
    case $name in
      '' | .) exit 45 ;;
      ..) cd -P .. && beneath && exit 45 ;;
    esac
    beneath
  done
}

is_there() { [ -e "./$name" ] || [ -L "./$name" ] || exit 44; }

brought() { sync "$1" 2>/dev/null || sync; }

read_file() {
  follow
  [ -d "./$name" ] && exit 45
  [ -e "./$name" ] || exit 44
  [ -f "./$name" ] || exit 49
  [ -r "./$name" ] || exit 48
  head -c "$limit" "./$name" | base64
}

write_file() {
  if [ -L "./$name" ]; then
    follow
    [ -d "./$name" ] && exit 45
    [ ! -e "./$name" ] || [ -f "./$name" ] || exit 49
    cat 2>/dev/null >"./$name" || denied
    brought "./$name"
    return
  fi
  [ -d "./$name" ] && exit 45
  mode=644
  [ -f "./$name" ] && mode=$(stat -c %a "./$name") && mode=${mode#"${mode%???}"}
  (set -C; cat 2>/dev/null >"./$fresh") || { rm -f "./$fresh"; denied; }
  [ "$(($(wc -c <"./$fresh") + 0))" = "$size" ] || { rm -f "./$fresh"; exit 52; }
  chmod "$mode" "./$fresh"
  brought "./$fresh"
  mv -f -T "./$fresh" "./$name" 2>/dev/null || mv -f "./$fresh" "./$name" 2>/dev/null || { rm -f "./$fresh"; exit 51; }
  brought .
}

# Names never hold a slash, so one begins each entry.
list_directory() {
  set --
  for one in * .[!.]* ..?*; do
    [ -e "./$one" ] || [ -L "./$one" ] || continue
    set -- "$@" "$one"
  done
  [ $# = 0 ] || stat -c '/%f %s %Y %Z %n' -- "$@" 2>/dev/null | head -c "$limit" | base64
}

stat_one() {
  is_there
  stat -c '/%f %s %Y %Z %n' -- "$name" | base64
}

remove_one() {
  is_there
  if [ -d "./$name" ] && [ ! -L "./$name" ]; then
    rm -rf "./$name" 2>/dev/null || denied
  else
    rm -f "./$name" 2>/dev/null || denied
  fi
  brought .
}

# What stands in the entered directory is held by descriptor 9; the next directory is entered from the top.
hold() {
  is_there
  exec 9<.
  held=$name
  cd -P -- "$top" || exit 40
}

rename_one() {
  [ -d "./$name" ] && exit 50
  mv -f "/proc/self/fd/9/$held" "./$name" 2>/dev/null || denied
  brought .
}

copy_one() {
  [ -e "./$name" ] || [ -L "./$name" ] && exit 50
  cp -R -P -p "/proc/self/fd/9/$held" "./$name" 2>/dev/null || denied
  brought .
}
