# bash completion for mlxvfio                                      -*- shell-script -*-
# Load it with: source <(mlxvfio completion bash)
# It needs bash 4.2 and nothing else. What is typed is handed over as it is, never
# expanded or run.

__mlxvfio_complete()
{
    # Bash breaks words at ':', '=' and '@' too, which DEV and FIELD=VALUE hold: put
    # together again what stands without a blank between.
    local line=${COMP_LINE:0:COMP_POINT} words=() w i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        w=${COMP_WORDS[i]}
        if ((i == 0)) || [[ $line == [[:blank:]]* ]]; then
            line=${line#"${line%%[![:blank:]]*}"}
            words+=("")
        fi
        ((i == COMP_CWORD)) && w=$line # up to the cursor
        words[-1]+=$w
        line=${line#"$w"}
    done
    local cur=${words[-1]}
    for i in "${!words[@]}"; do
        words[i]=${words[i]//[\"\'\\]/}
    done

    local out=() directive=0
    mapfile -t out < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
    COMPREPLY=()
    ((${#out[@]})) || return 0
    [[ ${out[-1]} == :* ]] && directive=${out[-1]#:} && unset 'out[-1]'
    [[ $directive =~ ^[0-9]+$ ]] || return 0

    # Of --flag=value the value is what is offered.
    local flag=""
    if [[ $cur == -*=* ]]; then
        [[ $COMP_WORDBREAKS == *=* ]] || flag=${cur%%=*}=
        cur=${cur#*=}
    fi

    # Readline replaces only what stands behind the last of its breaks.
    local prefix="" p c
    for c in : = @; do
        if [[ $COMP_WORDBREAKS == *"$c"* && $cur == *"$c"* ]]; then
            p=${cur%"${cur##*"$c"}"}
            ((${#p} > ${#prefix})) && prefix=$p
        fi
    done
    [[ $prefix ]] && flag=""

    # Descriptions are for lists only: they must not be put into the line.
    local describe=1 width=0 tab=$'\t'
    [[ ${#out[@]} -eq 1 || $COMP_TYPE == 37 || $COMP_TYPE == 42 ]] && describe=0
    for c in "${out[@]}"; do
        w=${c%%"$tab"*}
        w=$flag${w:${#prefix}}
        ((${#w} > width)) && width=${#w}
    done
    local room=$((${COLUMNS:-80} - width - 5))
    for c in "${out[@]}"; do
        w=${c%%"$tab"*}
        w=$flag${w:${#prefix}}
        if ((describe && room > 8)) && [[ $c == *"$tab"* ]]; then
            p=${c#*"$tab"}
            ((${#p} > room)) && p=${p:0:room-3}...
            printf -v w '%-*s (%s)' "$width" "$w" "$p"
        elif ((!describe)) && [[ $w == *[[:blank:]\"\'\\\$\`\&\;\(\)\|\<\>\*\?]* ]]; then
            printf -v w '%q' "$w"
        fi
        COMPREPLY+=("$w")
    done

    # 2: more of the word may follow, 4: no files, 16: folders only.
    ((directive & 2)) && compopt -o nospace 2>/dev/null
    if ((directive & 16)); then
        compopt -o dirnames +o default 2>/dev/null
    elif ((directive & 4)); then
        compopt +o default 2>/dev/null
    elif ((${#COMPREPLY[@]} == 0)); then
        compopt -o filenames -o default 2>/dev/null
    fi
    return 0
}

complete -o default -o nosort -F __mlxvfio_complete mlxvfio 2>/dev/null ||
    complete -o default -F __mlxvfio_complete mlxvfio
