# Count the jobs that run.
count=0
for d in "$jobs"/*/; do
  d=${d%/}
  [ -L "$d/started" ] && [ ! -e "$d/exit" ] && supervised "$d" && count=$((count + 1))
done
echo "$count"
