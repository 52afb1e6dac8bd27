"""Texts for bash that report how a host is reached, write the files of OpenSSH, and remove them."""

# Values before: label. The state of the module is in the home, because hosts may share it: a directory for the keys of
# each cluster and one for its identities, `made` with all that was not there before, and the lock. Every file of
# OpenSSH is replaced at once, so that a reader finds the old one or the new one.
COMMON = r"""
set -o pipefail
umask 077
PATH=$PATH:/usr/sbin:/sbin
dot=$HOME/.ssh
state=$HOME/.mesh/ssh
keys=$state/$label identities=$state/$label@identities
block=$dot/config.d/mesh-$label
include='Include config.d/mesh-*'

note() { printf 'ssh: %s\n' "$*" >&2; }
fail() { note "$@"; exit 1; }

# lock: wait for others who change these files, also on hosts that share the home. A lock that was removed is void
lock() {
    until [ "$state/lock" -ef /proc/self/fd/9 ]; do
        mkdir -p -- "$state" && { exec 9>>"$state/lock"; } || fail "cannot write $state"
        flock -w 60 9 || fail "$state/lock is held by another mesh for 60 s"
    done
}

# put FILE: replace a file at once by stdin. An existing file keeps its mode and owner, and a link stays a link
put() {
    local file beside
    file=$(readlink -f -- "$1") && beside=$(mktemp "${file%/*}/.mesh-tmp.XXXXXX") || fail "cannot write $1"
    if [ -e "$file" ]; then
        chmod --reference="$file" -- "$beside"
        chown --reference="$file" -- "$beside" 2>/dev/null
    fi
    cat >"$beside" && mv -f -- "$beside" "$file" || fail "cannot write $1"
}

# sweep: remove files of a put that was cut
sweep() {
    local file
    for file in "$dot/config" "$dot/authorized_keys" "$dot/any" "$dot/config.d/any"; do
        file=$(readlink -f -- "$file") && rm -f -- "${file%/*}"/.mesh-tmp.??????
    done
}

# making WHAT: note that a directory, a file or the Include line is mesh's, before it is made
making() { grep -qxF -- "$1" "$state/made" 2>/dev/null || printf '%s\n' "$1" >>"$state/made"; }

make_directories() {
    local directory
    for directory in .ssh .ssh/config.d; do
        [ -d "$HOME/$directory" ] && continue
        making "directory $directory"
        mkdir -- "$HOME/$directory" || fail "cannot make ~/$directory"
    done
}

has_include() { grep -qxF -- "$include" "$dot/config" 2>/dev/null; }

put_include() {
    has_include && return
    [ -e "$dot/config" ] || making "file .ssh/config"
    making include
    { printf '%s\n' "$include"; cat -- "$dot/config" 2>/dev/null || true; } | put "$dot/config"
}

# others_keys: print authorized_keys without the lines of this cluster
others_keys() { sed "/ mesh-${label//./\\.}-[0-9a-f]\{8\}$/d" "$dot/authorized_keys" 2>/dev/null || true; }

# addresses: print the addresses of this host that are not of containers and virtual machines on it
addresses() {
    if command -v ip >/dev/null; then
        ip -o addr show scope global 2>/dev/null | awk '
            /temporary|deprecated/ || $2 ~ /^(docker|br-|veth|virbr|cni|flannel|cali|podman)/ { next }
            { sub("/.*", "", $4); print $4 }'
    else
        hostname -I | tr ' ' '\n'
    fi
}

# own_address: print the address of this host that the block has
own_address() {
    local address words
    words=" $(sed -n 's/^Host //p' "$block" 2>/dev/null | tr '\n' ' ')"
    for address in $(addresses); do
        case $words in *" $address "*) printf %s "$address"; return ;; esac
    done
    return 1
}

# log_in: log in to this host as another one would, with the new key alone. A master of ControlPersist would stay
log_in() {
    local address
    address=$(own_address) || { printf 'none of its addresses is in %s\n' "$block" >&2; return 1; }
    timeout 20 ssh -F "$keys/config" -o IdentitiesOnly=yes -o IdentityAgent=none -o ControlPath=none \
        -o BatchMode=yes -o ConnectTimeout=10 "$address" true </dev/null 3>&- 9>&-
}

# in_place: true if the keys are as apply left them, and work
in_place() {
    { read -r key_there && read -r members; } 2>/dev/null <"$keys/setup" || return 1
    (cd && sha256sum --status -c "$keys/sums") 2>/dev/null && has_include || return 1
    [ -r "$dot/authorized_keys" ] && [ -z "$(grep -vxFf "$dot/authorized_keys" "$keys/authorized")" ] || return 1
    log_in >/dev/null 2>&1
}

# read_server: set port and host_keys
read_server() {
    local settings file address type own
    settings=$(sshd -T 2>/dev/null || true)  # root alone may ask
    port=${SSH_CONNECTION##* }
    [ -n "$port" ] || port=$(awk '$1 == "port" { print $2; exit }' <<<"$settings")
    port=${port:-22}
    host_keys=$(for file in $(awk '$1 == "hostkey" { print $2 }' <<<"$settings"); do
        ssh-keygen -y -f "$file" </dev/null 2>/dev/null || cat "$file.pub" 2>/dev/null || true
    done)
    # A plain user may not ask sshd for its settings, and asks the sshd that runs. Its files may be others than usual.
    read -r _ _ address _ <<<"${SSH_CONNECTION:-}"
    for type in ed25519 ecdsa,rsa; do
        for own in $address 127.0.0.1; do
            [ -n "$host_keys" ] ||
                host_keys=$(ssh-keyscan -T 5 -t "$type" -p "$port" "$own" 2>/dev/null | sed -n '/^#/! s/^[^ ]* //p')
        done
    done
    [ -n "$host_keys" ] || host_keys=$(cat /etc/ssh/ssh_host_*_key.pub 2>/dev/null)
    [ -n "$host_keys" ]
}
"""

REPORT = r"""
read_server || exit 1
{
    printf 'user %s\nport %s\n' "$(id -un)" "$port"
    printf '%s\n' "$(hostname)" "$(timeout 2 hostname -f 2>/dev/null || true)" | sed -n '/./ s/^/name /p'
    addresses | sed -n '/./ s/^/address /p'
    awk 'NF > 1 { print "key", $1, $2 }' <<<"$host_keys"
    if in_place; then printf 'setup %s\nmembers %s\n' "$key_there" "$members"; fi
} >&3
"""

# For a host whose report failed; with --force for others as well.
NO_SERVER = r"""
read_server || fail "$(hostname) has no sshd, so no other host can log in there"
"""

# ---- the keys of a cluster. Values before: label, key_id

KEYS_IN_PLACE = r"""
in_place && [ "$key_there" = "$key_id" ]
"""

KEYS = r"""
lock
sweep
command -v ssh >/dev/null || fail "$(hostname) has no program ssh"
for name in key known_hosts block authorized setup; do
    [ -r "$keys/new/$name" ] || fail "$keys/new/$name is not there"
done
rm -f -- "$keys/setup"
make_directories
name=mesh-$label-$key_id
put "$dot/$name" <"$keys/new/key"
put "$dot/$name.known_hosts" <"$keys/new/known_hosts"
put "$keys/config" <"$keys/new/block"
put "$keys/authorized" <"$keys/new/authorized"
[ -e "$dot/authorized_keys" ] || making "file .ssh/authorized_keys"
{ cat -- "$keys/authorized"; others_keys; } | put "$dot/authorized_keys"
while IFS= read -r line; do
    if [ "$line" = "    # default identities" ]; then  # with one IdentityFile, ssh no longer tries these by itself
        for file in id_rsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk; do
            [ ! -e "$dot/$file" ] || printf '    IdentityFile ~/.ssh/%s\n' "$file"
        done
    else
        printf '%s\n' "$line"
    fi
done <"$keys/new/block" | put "$block"
put_include
for file in "$dot"/mesh-"$label"-????????{,.known_hosts}; do
    case $file in "$dot/$name"|"$dot/$name.known_hosts") ;; *) [ ! -e "$file" ] || rm -f -- "$file" ;; esac
done
why=$(log_in 2>&1) || fail "the new key does not log in to $(hostname) itself: $(tail -n 1 <<<"$why")"
(cd && sha256sum ".ssh/$name" ".ssh/$name.known_hosts" ".ssh/config.d/mesh-$label") | put "$keys/sums"
put "$keys/setup" <"$keys/new/setup"
rm -rf -- "$keys/new"
"""

# ---- identities. Values before: paths, sums, modes (of each file), notes, entries, label

HAVE_IDENTITIES = r"""
for i in "${!paths[@]}"; do
    [ "$(sha256sum 2>/dev/null <"$HOME/${paths[i]}")" = "${sums[i]}  -" ] || exit 1
    [ "${modes[i]}" != 600 ] || case $(stat -Lc %a -- "$HOME/${paths[i]}") in *00) ;; *) exit 1 ;; esac
done
[ -z "$entries" ] || { has_include && printf %s "$entries" | cmp -s - "$block@identities"; }
"""

SET_IDENTITIES = r"""
lock
sweep
for i in "${!paths[@]}"; do
    file=$HOME/${paths[i]}
    [ -r "$identities/new/$i" ] || fail "$identities/new/$i is not there"
    [ ! -e "$file" ] || cmp -s -- "$identities/new/$i" "$file" ||
        fail "~/${paths[i]} on $(hostname) is another file than yours, and is not overwritten: move it away," \
            "or name another IdentityFile in config_entry"
done
make_directories
for i in "${!paths[@]}"; do
    file=$HOME/${paths[i]}
    if [ ! -e "$file" ]; then
        directory=${paths[i]%/*}
        [ -d "$HOME/$directory" ] || { making "directory $directory"; mkdir -p -- "$HOME/$directory"; }
        printf '%s  %s\n' "${sums[i]}" "${paths[i]}" >>"$identities/made"
        chmod "${modes[i]}" "$identities/new/$i" && mv -n -- "$identities/new/$i" "$file" || fail "cannot write $file"
    elif [ "${modes[i]}" = 600 ]; then
        chmod go= -- "$file"
    fi
done
if [ -n "$entries" ]; then
    printf %s "$entries" | put "$block@identities"
    put_include
fi
rm -rf -- "$identities/new"
[ "${#notes[@]}" = 0 ] || printf '%s\n' "${notes[@]}"
"""

# ---- both, by the cluster's label alone

UNDO = r"""
[ -d "$state" ] || exit 0
lock
sweep
rm -f -- "$dot"/mesh-"$label"-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]{,.known_hosts} &&
    rm -f -- "$block" "$block@identities" || fail "cannot remove what mesh has written in $dot"
if [ -e "$dot/authorized_keys" ] && ! others_keys | cmp -s - "$dot/authorized_keys"; then
    others_keys | put "$dot/authorized_keys" || exit 1
fi
while read -r sum file; do
    [ "$(sha256sum 2>/dev/null <"$HOME/$file")" != "$sum  -" ] || rm -f -- "$HOME/$file"
done 2>/dev/null <"$identities/made"
rm -rf -- "$keys" "$identities"
if [ -z "$(find "$state" -mindepth 1 -type d)" ]; then  # no other cluster has anything here
    if grep -qx include "$state/made" 2>/dev/null && has_include; then
        sed '0,\|^Include config\.d/mesh-\*$|{//d}' "$dot/config" | put "$dot/config" || exit 1
    fi
    while read -r kind file; do
        [ "$kind" != file ] || [ -s "$HOME/$file" ] || rm -f -- "$HOME/$file"
    done 2>/dev/null <"$state/made"
    while read -r kind file; do
        [ "$kind" != directory ] || rmdir -- "$HOME/$file" 2>/dev/null
    done < <(tac "$state/made" 2>/dev/null)
    rm -f -- "$state/made" "$state/lock"
    rmdir -- "$state" "$HOME/.mesh" 2>/dev/null
fi
true
"""
