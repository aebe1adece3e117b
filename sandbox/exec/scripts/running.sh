# Count the jobs that run and keep the box awake.
count=0
for d in "$jobs"/*/; do
  d=${d%/}
  [ -L "$d/started" ] && [ ! -e "$d/exit" ] && [ ! -e "$d/rests" ] && supervised "$d" && count=$((count + 1))
done
echo "$count"
