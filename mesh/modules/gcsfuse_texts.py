"""Texts for bash by which gcsfuse is installed, and by which buckets are mounted and unmounted."""

# The repository and its key, as Google documents them for Debian and Ubuntu:
# cloud.google.com/storage/docs/cloud-storage-fuse/install
REPOSITORY = "https://packages.cloud.google.com/apt"
KEY_ADDRESS = "https://packages.cloud.google.com/apt/doc/apt-key.gpg"
KEY_FILE = "/usr/share/keyrings/cloud.google.asc"
LIST_FILE = "/etc/apt/sources.list.d/gcsfuse.list"
APT_LOCK_TIMEOUT_S = 600
ANSWER_LIMIT_S = 10  # for a mount

SPEAK = r"""
note() { printf 'gcsfuse: %s\n' "$*" >&2; }
fail() { note "$@"; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n -- "$@"; fi; }
"""

# ---- the program

INSTALLED = "command -v gcsfuse >/dev/null\n"

INSTALL_PROGRAM = (
    f"repository={REPOSITORY} address={KEY_ADDRESS} key={KEY_FILE} list={LIST_FILE} patience={APT_LOCK_TIMEOUT_S}\n"
    + SPEAK
    + r"""
command -v gcsfuse >/dev/null && exit 0
command -v apt-get >/dev/null ||
    fail "this host has no gcsfuse and no apt-get; https://cloud.google.com/storage/docs/cloud-storage-fuse/install"
release=$(. /etc/os-release && printf %s "${VERSION_CODENAME:-}")
[ -n "$release" ] || fail "/etc/os-release has no VERSION_CODENAME, which names the repository of gcsfuse"
line="deb [signed-by=$key] $repository gcsfuse-$release main"
if ! as_root true 2>/dev/null; then
    note "this host has no gcsfuse, and $(id -un) may not install it. An administrator must run:"
    printf '  %s\n' "curl -fsSL $address | sudo tee $key >/dev/null" "echo '$line' | sudo tee $list" \
        "sudo apt-get update && sudo apt-get install -y gcsfuse" >&2
    fail "not installed on $(hostname): needs root (sudo -n is refused)"
fi

# holder FILE: print the process that has locked a file; /proc/locks lists locks by inode
holder() {
    local inode pid
    inode=$(stat -c %i -- "$1" 2>/dev/null) || return 1
    pid=$(awk -v inode="$inode" '{ n = split($6, part, ":"); if ($2 != "->" && part[n] == inode) print $5 }' \
        /proc/locks 2>/dev/null | head -n 1)
    [ -n "$pid" ] && printf '%s (process %s)' "$(cat "/proc/$pid/comm" 2>/dev/null)" "$pid"
}

# wait_for_apt: wait until nobody has apt's locks; name the holder
wait_for_apt() {
    local deadline=$((SECONDS + patience)) shown= file held
    for file in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock; do
        while held=$(holder "$file"); do
            [ "$held" = "$shown" ] || note "waiting for apt's lock: $held has it"
            shown=$held
            [ "$SECONDS" -lt "$deadline" ] || fail "apt's lock is still held by $held after $patience s"
            sleep 1
        done
    done
}

# fetch URL: print what is there
fetch() {
    if command -v curl >/dev/null; then curl -fsSL -- "$1"
    elif command -v wget >/dev/null; then wget -qO- -- "$1"
    else python3 -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=60).read().decode())' "$1"
    fi
}

# put FILE: write a file of root at once, from stdin
put() { as_root sh -c 'mkdir -p "${1%/*}" && cat >"$1.mesh" && chmod 644 "$1.mesh" && mv -f "$1.mesh" "$1"' sh "$1"; }

apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout="$patience" "$@" </dev/null; }

text=$(fetch "$address") && [ -n "$text" ] || fail "cannot fetch $address"
printf '%s\n' "$text" | put "$key" || fail "cannot write $key"
printf '%s\n' "$line" | put "$list" || fail "cannot write $list"
wait_for_apt
apt update || fail "apt-get update failed, see above"
wait_for_apt
apt install -y gcsfuse || fail "apt-get install gcsfuse failed, see above"
command -v gcsfuse >/dev/null || fail "apt-get installed gcsfuse, but there is no such program on PATH"
"""
)

# ---- a bucket

# Values before: bucket, path, prefix, options, wanted (digest of options and prefix), key (the mark's name).
MOUNT_FUNCTIONS = (
    f"answer_s={ANSWER_LIMIT_S}\n"
    + SPEAK
    + r"""
mark=$MESH_MODULES/$key
state= daemon= mounted= made= digest= words=

# find_mount: set point, and the device, type and source of the mount there. It does not look into a mount that may hang
find_mount() {
    local parent
    parent=$(timeout -k 1 10 realpath -m -- "$(dirname -- "$path")") || fail "$(dirname -- "$path") does not answer"
    point=${parent%/}/$(basename -- "$path")
    read_mounts && return
    point=$(timeout -k 1 10 realpath -m -- "$point") || fail "$path does not answer"
    read_mounts
}

read_mounts() {
    local id device where rest escaped=${point//\\/\\134}
    escaped=${escaped// /\\040} escaped=${escaped//$'\t'/\\011} kind= source= device_id=
    while read -r id _ device _ where rest; do
        [ "$where" = "$escaped" ] || continue
        rest=${rest#*- } kind= source= device_id="$id $device"
        read -r kind source _ <<<"$rest"
    done </proc/self/mountinfo
    [ -n "$kind" ]
}

# answers: true if the mount answers in time. A process that waits for a mount may be impossible to kill
answers() {
    local pid status word= way
    exec {way}< <(exec stat -f -c answers -- "$point" 2>/dev/null </dev/null 3>&-)
    pid=$!
    read -r -t "$answer_s" word <&"$way"
    status=$?
    exec {way}<&-
    [ "$status" -le 128 ] || kill -9 "$pid" 2>/dev/null  # it still waits
    [ -n "$word" ]
}

# started PID: print the time at which a process began, with the id of this start of the machine
started() {
    local line boot
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    line=${line##*) }
    set -- $line
    read -r boot </proc/sys/kernel/random/boot_id
    printf '%s %s' "${20}" "$boot"
}

# daemon_with WORDS: print "PID START BOOT" of our process whose command line ends with these words. There are two
# while gcsfuse starts: the second one has --foreground before the words
daemon_with() {
    local file pid line longest=0 found=
    eval "set -- $1"
    for file in $(grep -lzxF -- "$point" /proc/[0-9]*/cmdline 2>/dev/null); do
        pid=${file#/proc/} pid=${pid%/*}
        [ -O "/proc/$pid" ] && { mapfile -d '' -t line <"$file"; } 2>/dev/null || continue
        [ "${#line[@]}" -gt "$#" ] && [ "${line[*]: -$#}" = "$*" ] || continue
        [ "${#line[@]}" -gt "$longest" ] && longest=${#line[@]} found=$pid
    done
    [ -n "$found" ] && printf '%s %s' "$found" "$(started "$found")"
}

# await_start: if apply was cut while gcsfuse began, wait until it has mounted, or end it after 10 s
await_start() {
    local tries=0 found
    while [ "$state" = mounting ] && ! find_mount && found=$(daemon_with "$words"); do
        [ "$((tries += 1))" -lt 100 ] || kill -9 "${found%% *}" 2>/dev/null
        sleep 0.1
    done
}

load_mark() {
    local name value
    [ -e "$mark" ] || return 1
    while IFS='=' read -r name value; do
        case $name in state|daemon|mounted|made|digest|words) printf -v "$name" %s "$value" ;; esac
    done <"$mark"
}

save_mark() {
    mkdir -p -- "$MESH_MODULES" && printf '%s\n' "state=$state" "daemon=$daemon" "mounted=$mounted" "made=$made" \
        "digest=$digest" "words=$words" "shown=bucket $bucket at $path" \
        >"$mark.new" && mv -f -- "$mark.new" "$mark" || fail "cannot write $mark"
}

# is_ours: true if the mount there is the one that mesh made, and not a later one at the same path
is_ours() {
    local pid=${daemon%% *}
    if [ "$state" = mounting ]; then  # apply was cut: it is ours if it was started by our words
        daemon=$(daemon_with "$words")
    elif [ -n "$pid" ] && [ "$(started "$pid")" = "${daemon#* }" ]; then
        [ "$mounted" = "$device_id" ]
    elif [ -z "$pid" ]; then  # its daemon was not found when it was mounted
        [ "$mounted" = "$device_id" ]
    else  # its daemon has ended, and so has the mount, unless somebody mounted again
        [ "$mounted" = "$device_id" ] && ! answers
    fi
}

fuse() {
    local program=fusermount3
    command -v "$program" >/dev/null || program=fusermount
    timeout -k 1 10 "$program" "$@" -- "$point"
}

detach() {
    fuse -uz || as_root umount -l -- "$point" || fail "cannot unmount $path, which does not answer"
}

remove_directories() {
    local directory=$point
    [ -n "$made" ] || return 0
    while case $directory/ in "$made"/*) ;; *) false ;; esac; do
        rmdir -- "$directory" 2>/dev/null || as_root rmdir -- "$directory" 2>/dev/null || [ ! -e "$directory" ] ||
            return 0
        directory=$(dirname -- "$directory")
    done
}
"""
)

CHECK = r"""
command -v gcsfuse >/dev/null || exit 1
find_mount || exit 1
[ "$kind" = fuse.gcsfuse ] && [ "$source" = "$bucket" ] && answers || exit 1
load_mark || exit 0
[ "$state" = mounted ] || exit 1
if is_ours; then [ "$digest" = "$wanted" ]; fi
"""

APPLY = r"""
load_mark
await_start
if find_mount; then
    [ "$kind" = fuse.gcsfuse ] ||
        fail "$path is a mount of $source ($kind): unmount it, or give the bucket another path"
    [ "$source" = "$bucket" ] || fail "$path has the bucket $source, and mesh.yaml has $bucket there:" \
        "run \`fusermount -u $path\` on $(hostname), or give the bucket another path"
    if ! answers; then
        note "$path does not answer; mounting it again"
        detach
    elif [ "$state" = mounting ] && is_ours; then
        state=mounted mounted=$device_id
        save_mark
        exit 0
    elif [ "$state" = mounted ] && is_ours; then
        [ "$digest" != "$wanted" ] || exit 0
        note "the options of $path have changed; mounting it again"
        fuse -u || fail "$path has other options than mesh.yaml, and cannot be unmounted: end what uses it"
    else  # somebody else's, or one that somebody mounted in place of ours
        rm -f -- "$mark"
        exit 0
    fi
    ! find_mount || fail "$path is still a mount of $source ($kind)"
fi
[ ! -e "$point" ] || [ -d "$point" ] || fail "$path is not a directory"
first=$(ls -A -- "$point" 2>/dev/null | head -n 1)
[ -z "$first" ] || fail "$path is not empty (it has $first): move its files away, or give the bucket another path"
command -v gcsfuse >/dev/null || fail "this host has no gcsfuse"

if [ "$(id -u)" = 0 ] || grep -qx '[[:space:]]*user_allow_other[[:space:]]*' /etc/fuse.conf 2>/dev/null; then
    options+=(-o allow_other)
fi
if [ -n "$prefix" ]; then
    bash -c "$prefix" </dev/null || fail "the text of cache.prefix failed with status $?"
fi
top= directory=$point
while [ ! -e "$directory" ]; do top=$directory directory=$(dirname -- "$directory"); done
made=${made:-$top}
state=mounting daemon= mounted= digest=$wanted words=$(printf '%q ' "${options[@]}" "$bucket" "$point")
save_mark
if ! mkdir -p -- "$point" 2>/dev/null && ! as_root install -d -o "$(id -u)" -g "$(id -g)" -- "$point" 2>/dev/null; then
    rm -f -- "$mark"
    fail "$(id -un) may not make $path. An administrator must run: sudo install -d -o $(id -un) $path"
fi
cd /
gcsfuse "${options[@]}" "$bucket" "$point" >"$mark.log" 2>&1 </dev/null 3>&-
status=$?
text=$(cat -- "$mark.log")
rm -f -- "$mark.log"
[ -z "$text" ] || printf '%s\n' "$text" >&2
if [ "$status" != 0 ] || ! find_mount; then
    remove_directories
    rm -f -- "$mark"
    fail "cannot mount the bucket $bucket at $path: $(tail -n 1 <<<"${text:-gcsfuse ended with status $status}")"
fi
daemon=$(daemon_with "$words")
state=mounted mounted=$device_id
save_mark
"""

UNDO = r"""
rm -f -- "$mark.new" "$mark.log"
load_mark || exit 0
await_start
if find_mount && [ "$kind" = fuse.gcsfuse ] && [ "$source" = "$bucket" ] && is_ours; then
    deadline=$((SECONDS + 30))
    until fuse -u 2>/dev/null; do
        find_mount || break
        if [ "$SECONDS" -ge "$deadline" ]; then
            note "$path is in use; unmounting it as soon as it is not"
            detach
            break
        fi
        sleep 0.5
    done
fi
find_mount || remove_directories
rm -f -- "$mark"
"""
