# End what is left of a command, and wait until what looks after it, which names its key, has ended as well. $kin is
# empty for programs of ours, whose supervisors live on.
kill_members "$ended" "${kin:-none}"
rounds=0
while [ "$rounds" -lt 100 ] && grep -qs "key=$ended" /proc/[0-9]*/cmdline; do
  rest 0.02
  rounds=$((rounds + 1))
done
