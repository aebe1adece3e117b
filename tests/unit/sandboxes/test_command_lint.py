"""What is refused with a word before a sandbox sees it, and what is not."""

from __future__ import annotations

import pytest

from sandbox.exec.command_lint import missing_runtime, path_outside_workspace

ORDINARY = r"""
ls
ls -la
ls /
ls /usr/share
ls -l /dev
ls /tmp
pwd; id; whoami; uname -a
df -h /
du -sh .
cat /etc/os-release
cat /etc/hosts /etc/resolv.conf
cat /proc/cpuinfo | grep -c processor
head -3 /proc/meminfo
cat /proc/self/status
cat /sys/fs/cgroup/memory.max
ls /sys/class/net
. /etc/profile
ls /etc/ssl/certs
test -f /usr/bin/python3 && echo yes
/usr/bin/env bash -c true
/opt/venv/bin/python -V
export PATH=/opt/tools/bin:$PATH
which -a python3 node
TMP=/tmp/x mktemp /tmp/abc.XXX
mkdir -p /var/tmp/build
echo hi > out.txt && cat out.txt
echo "see ../README.md"
printf '%s\n' /etc/passwd
echo /home/someone
cat 1/out.txt
cat 2024/report.md 10/a
echo $((6/2))
echo $(( 10 / 3 ))
x=$((6/2)); echo $x
cd sub && cat ../x
cd sub; ls ..
cd a/b && cat ../../top.txt && cd ..
(cd sub && make) && ls
(cd sub && cat ../x); cat sub/y
mkdir -p build && cd build && cmake .. && make
cd sub && make ; cd -
cd /tmp && ls ..
cd "$DIR" && cat ../x
cd && ls ..
pushd sub && cat ../x && popd
cat sub/../x
cp a/b/../c .
ls ./sub/..
git diff HEAD~1..HEAD
git log main..topic --oneline
git -C sub show ../x
make -C sub ../all
npm --prefix web run ../x
tar -C sub -cf - ../x
echo a...b ..c
find . -name '*.py' | xargs wc -l
find . -path './node_modules' -prune -o -print
find / -maxdepth 1
grep -r foo/bar src
grep -rn "../" src
grep -n '/home/' users.txt
grep -c root names.txt
rg '\.\./' src
awk '/home/ {print $1}' names
awk -F: '{print $1}' names
sed -e /foo/d file
sed -n '/root/p' names
sed -i 's#/etc/app#/opt/app#' conf.ini
sed s#../lib#lib# a.js
jq '.a/.b' x.json
perl -ne 'print if /var/' x
tr / _ < names
curl -s https://example.com/a/b
curl -s http://localhost:8000/api/v1/users
curl -X POST -d @body.json https://example.com/home/x
git clone https://example.com/etc/x.git
cmd >/dev/null 2>&1
cmd 2>/dev/null | head
head -c 16 /dev/urandom | base64
echo x >/tmp/x
time sleep 0.1
for i in 1 2 3; do echo $i; done
while read l; do echo "$l"; done < names
if [ -d sub ]; then ls sub; fi
case "$1" in a) ls;; b) pwd;; esac
f() { ls "$1"; }; f sub
[[ -f x ]] && rm x
diff <(sort a) <(sort b)
cat <<< ../x
node -e 'require("../x")'
import_path=../x true
wc -l *.txt
cp -r a{,.bak}
chmod +x run.sh && ./run.sh
ssh-keygen -t ed25519 -f ./key -N ''
sqlite3 x.db 'select * from a'
psql postgres://db/app -c 'select 1'
docker run -v "$PWD":/data image
java -cp lib/*:. Main
expr 6 / 2
test 1 -lt 2
kill %1
ls ~ ~/.config
echo 'unbalanced
""".strip().splitlines()
"""What people and models type every day."""
ORDINARY_TEXTS = (
    "cat <<EOF\n/etc/passwd is a file\nEOF",
    "cat <<-'END' > out\n\tcat /etc/passwd\n\tEND\nls",
    "cat <<A <<B\ncat /etc/one\nA\ncat /etc/two\nB\nls",
    "cd sub\ncat ../x",
    "python3 - <<'PY'\nopen('../x')\nPY",
)
REACHING_OUT = r"""
cat /etc/passwd
cat /etc/shadow
ls /root
ls /root/
ls /home/someone
ls /home
echo x >/root/.bashrc
echo x >> /etc/hosts.allow
echo x 2> /var/log/x
cat < /etc/passwd
cat /tmp/../etc/passwd
cat /proc/1/environ
ls /var/lib
ls && (cat /var/log/syslog)
grep -r key /etc/ssl
grep root /etc/passwd
sed -n 1p /etc/shadow
awk -F: '{print $1}' /etc/passwd
cp /srv/x .
ls ..
cat ../secret
cat ./../secret
cp a sub/../../b
cd ..
cd ../other && ls
cd sub && cat ../../x
cd sub; cd ..; cat ../x
(cd sub); cat ../x
true; ls /home/someone
sudo cat /etc/shadow
find / -name id_rsa
du -sh /
ls -R /
tree /
rg token /
""".strip().splitlines()
REACHING_OUT_TEXTS = (
    "cat <<EOF\ntext\nEOF\ncat /etc/passwd",
    "cat <<EOF\ncat /etc/passwd",
    "cat <<<EOF\ncat /etc/passwd\nEOF",
    "cd sub\ncd ..\ncat ../x",
)


@pytest.mark.parametrize("script", [*ORDINARY, *ORDINARY_TEXTS])
def test_ordinary_scripts_pass(script: str) -> None:
    """A script that stays in the working directory, or reads facts about the system, is let through."""
    assert path_outside_workspace(script) is None
    assert missing_runtime(script, ("bash", "python", "node")) is None


@pytest.mark.parametrize("script", [*REACHING_OUT, *REACHING_OUT_TEXTS])
def test_obvious_reaching_out_is_refused(script: str) -> None:
    """Paths of the system and of others, climbing and whole-filesystem scans are refused with a reason."""
    assert path_outside_workspace(script)


@pytest.mark.parametrize("script", ["python3 -V", "FOO=1 python x.py", "ls | uv run x", "sudo pip install x"])
def test_a_runtime_not_offered_is_refused(script: str) -> None:
    """An obvious invocation of a runtime outside the list is refused and names what is offered."""
    reported = missing_runtime(script, ("bash", "node"))
    assert reported is not None
    assert "bash, node" in reported
    assert missing_runtime(script, ("bash", "python")) is None


@pytest.mark.parametrize("script", ["echo python", "cat node/file", "./nodes.sh", "grep npm .", "pythonic"])
def test_mentioning_a_runtime_is_no_invocation(script: str) -> None:
    """A runtime's name as an argument or as part of another name is not refused."""
    assert missing_runtime(script, ("bash",)) is None
