"""Texts for bash of the module docker: how an engine is found, an image is pulled and a container is run.

Each text is constant. Values come before it, as quoted assignments, or from the environment. All names begin with
``_mesh`` or ``MESH_ENGINE``, because the variables of the user must reach the container as they are.
"""

# The engine is docker or podman. A user without the right to docker's socket gets the socket's group by sudo. The
# engine still runs as this user, so that it gets signals, and dies by SIGKILL. sudo cleans the environment, and
# values must not stand in an argv: the process behind sudo reads them from the process before it.
WITH_GROUP = r"""
_mesh_inherit='
[ -r "/proc/$1/environ" ] || { echo "mesh: docker: cannot read the environment" >&2; exit 125; }
while IFS= read -r -d "" _mesh_one; do export -- "$_mesh_one"; done <"/proc/$1/environ" 2>/dev/null
export MESH_ENGINE_GROUP=
shift
exec "$@"'
_mesh_with_group() {
    local groups
    groups=$(id -G)
    sudo -n setpriv --reuid "$(id -u)" --regid "$(id -g)" --groups "${groups// /,},$1" \
        bash -c "$_mesh_inherit" mesh "$$" "${@:2}"
}
"""

FIND = r"""
_mesh_engine() {
    if [ -n "$MESH_ENGINE_GROUP" ]; then
        _mesh_with_group "$MESH_ENGINE_GROUP" "$MESH_ENGINE" "$@"
    else
        "$MESH_ENGINE" "$@"
    fi
}
_mesh_denied() {
    local socket group user
    user=$(id -un 2>/dev/null) || user=$(id -u)
    case $1 in *unix://*) socket=${1#*unix://} socket=${socket%%[:; ]*} ;; *) socket=/var/run/docker.sock ;; esac
    if group=$(stat -Lc %g -- "$socket" 2>/dev/null) &&
        _mesh_with_group "$group" "$MESH_ENGINE" ps -q --filter label=mesh.run=none >/dev/null 2>&1; then
        MESH_ENGINE_GROUP=$group
        _mesh_notice="$user may not use $socket: sudo is used; for good: sudo usermod -aG docker $user"
        return
    fi
    _mesh_why=denied
    _mesh_error="$user may not use docker on this host, and sudo asks for a password"
    _mesh_error+=": sudo usermod -aG docker $user, then log in anew"
    return 1
}
_mesh_find() {
    local one error
    MESH_ENGINE= MESH_ENGINE_GROUP= _mesh_why= _mesh_error= _mesh_notice=
    for one in $_mesh_engines; do
        if type -P "$one" >/dev/null; then MESH_ENGINE=$one; break; fi
    done
    if [ -z "$MESH_ENGINE" ]; then
        _mesh_error="this host has no ${_mesh_engines/ / and no }"
        case $_mesh_engines in podman) one=podman ;; *) one=docker.io ;; esac
        _mesh_error+=": sudo apt-get install $one"
        return 1
    fi
    error=$(LC_ALL=C "$MESH_ENGINE" ps -q --filter label=mesh.run=none 2>&1 >/dev/null) && return
    case $MESH_ENGINE:$error in
    docker:*'permission denied'*) _mesh_denied "$error" && return ;;
    docker:*'annot connect'* | docker:*'ailed to connect'* | docker:*'daemon running'*)
        _mesh_why=down
        _mesh_error="docker's daemon does not answer on this host (${error##*$'\n'}): sudo systemctl start docker"
        ;;
    *) _mesh_error="$MESH_ENGINE does not work on this host (${error##*$'\n'}): $MESH_ENGINE info" ;;
    esac
    return 1
}
"""

# The fact that a host reports is the image's id and the digests that registries have for it.
CHECK = r"""
_mesh_find || { echo "$_mesh_error" >&2; exit 1; }
_mesh_format='{{.Id}}{{range .RepoDigests}} {{.}}{{end}}'
_mesh_fact=$(_mesh_engine image inspect --format "$_mesh_format" -- "$_mesh_image") || exit 1
{ printf '%s\n' "$_mesh_fact" >&3; } 2>/dev/null || :
"""

APPLY = r"""
_mesh_fail() { echo "$1" >&2; exit 125; }
_mesh_manage_engine() {
    local root=
    [ "$(id -u)" = 0 ] || root='sudo -n'
    if [ "$_mesh_why" = down ]; then
        $root systemctl start docker || $root service docker start
        for _ in {1..60}; do
            _mesh_find && break
            sleep 0.5
        done
    elif [ -n "$MESH_ENGINE_GROUP" ] && getent group docker >/dev/null; then
        $root usermod -aG docker "$(id -un)" && echo "$(id -un) is in the group docker from the next login on"
    fi
}
_mesh_find
[ -z "$_mesh_notice" ] || echo "$_mesh_notice" >&2
[ -z "$_mesh_manage" ] || _mesh_manage_engine
[ -z "$_mesh_error" ] || { echo "$_mesh_error" >&2; exit 125; }
_mesh_pull() {
    local line
    { _mesh_said=$(
        set -o pipefail
        LC_ALL=C _mesh_engine pull -- "$_mesh_image" 2>&1 | while IFS= read -r line || [ -n "$line" ]; do
            printf '%s\n' "$line" >&4
            printf '%s\n' "$line"
        done
    ); } 4>&1
}
for _mesh_try in again last; do
    _mesh_pull && exit
    case $_mesh_said in
    *'no space left'* | *'quota exceeded'* | *'not enough space'*)
        _mesh_fail "the disk of this host is full, there is no room for $_mesh_image: $MESH_ENGINE system df; df -h" ;;
    *'short-name'*'did not resolve'*)
        _mesh_fail "podman needs the registry in the name $_mesh_image: podman pull docker.io/library/$_mesh_image" ;;
    *'anifest unknown'* | *'ame unknown'* | *'manifest for '*' not found'* | *'does not exist'* | *': not found'*)
        _mesh_fail "the registry has no image $_mesh_image: $MESH_ENGINE pull $_mesh_image" ;;
    *'denied'* | *'nauthorized'* | *'authentication required'*)
        _mesh_fail "there is no image $_mesh_image, or it needs a login: $MESH_ENGINE login" ;;
    *'nvalid reference'*) _mesh_fail "$_mesh_image is no name of an image: $MESH_ENGINE pull $_mesh_image" ;;
    esac
    if [ "$_mesh_try" = again ]; then
        echo "the pull failed, and is tried once more in $_mesh_pause s" >&2
        sleep "$_mesh_pause"
    fi
done
case $_mesh_said in
*'dial tcp'* | *imeout* | *handshake* | *EOF* | *'reset by peer'* | *' 50'[0-9]* | *TLS* | *'tls:'*)
    _mesh_fail "the registry of $_mesh_image does not answer (${_mesh_said##*$'\n'}): $MESH_ENGINE pull $_mesh_image" ;;
esac
_mesh_fail "cannot pull $_mesh_image (${_mesh_said##*$'\n'}): $MESH_ENGINE pull $_mesh_image"
"""

# Runs in the session of prerun, before the user's entries. The names that are there now are the host's own.
ENTER = r"""
_mesh_enter() {
    local one
    _mesh_find || { echo "docker: $_mesh_error" >&2; return 125; }
    [ -z "$_mesh_notice" ] || echo "docker: $_mesh_notice" >&2
    MESH_ENGINE_WORKSPACE=$PWD MESH_ENGINE_HOST==
    while IFS= read -r -d '' one; do MESH_ENGINE_HOST+=${one%%=*}=; done < <(env -0)
    export MESH_ENGINE MESH_ENGINE_GROUP MESH_ENGINE_WORKSPACE MESH_ENGINE_HOST
}
_mesh_enter || exit
unset -f _mesh_enter _mesh_find _mesh_denied _mesh_engine _mesh_with_group
unset _mesh_inherit _mesh_engines _mesh_why _mesh_error _mesh_notice
"""

# Runs in each rank's process, which becomes the engine's client.
RUN_WITH_GROUP = r"""
_mesh_fail() { echo "mesh: docker: $1" >&2; exit 125; }
[ -n "${MESH_ENGINE-}" ] || _mesh_fail 'no engine was chosen for this run'
if [ -n "${MESH_ENGINE_GROUP-}" ]; then
    trap : HUP INT QUIT TERM  # they reach the client by themselves; this shell waits for its end
    _mesh_with_group "$MESH_ENGINE_GROUP" bash -c "$BASH_EXECUTION_STRING" mesh "$@"
    exit
fi
"""

RUN = r"""
_mesh_place() {
    case $1 in
    '~') _mesh_found=$HOME ;;
    '~/'*) _mesh_found=$HOME/${1#??} ;;
    /*) _mesh_found=$1 ;;
    .) _mesh_found=$MESH_ENGINE_WORKSPACE ;;
    *) _mesh_found=$MESH_ENGINE_WORKSPACE/$1 ;;
    esac
}
_mesh_words=(run --rm -i --name "mesh-$_mesh_run-${RANK:-${NODE_RANK:-0}}"
    --label "mesh.run=$_mesh_run" --label "mesh.rank=${RANK:-${NODE_RANK:-0}}" "${_mesh_options[@]}")
_mesh_covered=
for ((_mesh_n = 0; _mesh_n < ${#_mesh_mounts[@]}; _mesh_n += 3)); do
    _mesh_place "${_mesh_mounts[_mesh_n]}"
    _mesh_source=$_mesh_found
    [ -e "$_mesh_source" ] || _mesh_fail "no $_mesh_source on this host to mount: mkdir -p ${_mesh_source@Q}"
    _mesh_place "${_mesh_mounts[_mesh_n + 1]}"
    [ "$_mesh_found" != "$MESH_ENGINE_WORKSPACE" ] || _mesh_covered=yes
    _mesh_words+=(-v "$_mesh_source:$_mesh_found${_mesh_mounts[_mesh_n + 2]}")
done
if [ -z "$_mesh_covered" ]; then
    _mesh_found=${MESH_ENGINE_WORKSPACE//\"/\"\"}
    case $MESH_ENGINE_WORKSPACE in
    *[:,\"]*) _mesh_words+=(--mount "type=bind,\"source=$_mesh_found\",\"target=$_mesh_found\"") ;;
    *) _mesh_words+=(-v "$MESH_ENGINE_WORKSPACE:$MESH_ENGINE_WORKSPACE") ;;
    esac
fi
if [ -n "$_mesh_workdir" ]; then _mesh_place "$_mesh_workdir"; else _mesh_found=$PWD; fi
_mesh_words+=(-w "$_mesh_found")
while IFS= read -r -d '' _mesh_one; do
    _mesh_one=${_mesh_one%%=*}
    case $_mesh_one in MESH_ENGINE* | _mesh* | BASH_FUNC_*) continue ;; esac
    if [[ $_mesh_set == *"=$_mesh_one="* ]]; then continue; fi
    if [[ $_mesh_asked != *"=$_mesh_one="* ]]; then
        if [[ $_mesh_never == *"=$_mesh_one="* ]]; then continue; fi
        if [[ $_mesh_named != *"=$_mesh_one="* ]]; then
            if [[ $_mesh_paths$MESH_ENGINE_HOST == *"=$_mesh_one="* ]]; then continue; fi
        fi
    fi
    _mesh_words+=(--env "$_mesh_one")
done < <(env -0 | LC_ALL=C sort -z)
_mesh_lines=
for ((_mesh_n = 0; _mesh_n < ${#_mesh_values[@]}; _mesh_n++)); do
    _mesh_one=MESH_ENGINE_VALUE_$_mesh_n
    case ${_mesh_values[_mesh_n]} in
    '') ;;
    =*) _mesh_lines+=${_mesh_values[_mesh_n]#=}=${!_mesh_one}$'\n' ;;
    *)
        export "${_mesh_values[_mesh_n]}=${!_mesh_one}"
        _mesh_words+=(--env "${_mesh_values[_mesh_n]}")
        ;;
    esac
done
set -- "${_mesh_flags[@]}" "$_mesh_image" "$@"
[ -n "$_mesh_lines" ] || exec "$MESH_ENGINE" "${_mesh_words[@]}" "$@"
exec "$MESH_ENGINE" "${_mesh_words[@]}" --env-file <(printf %s "$_mesh_lines") "$@"
"""
