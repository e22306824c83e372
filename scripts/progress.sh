# progress MESSAGE COMMAND...: runs the command quietly and shows that it is alive: on a terminal one line that changes,
# elsewhere a line every 20 seconds. When the command fails, the end of its output is shown and its status returned.

progress() {
  local message=$1 log pid start=$SECONDS shown=$SECONDS tty=
  shift
  log=$(mktemp)
  [ -t 1 ] && tty=1
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  [ -n "$tty" ] || echo "$message ..."
  while kill -0 $pid 2>/dev/null; do
    if [ -n "$tty" ]; then
      progress_line "$message ($((SECONDS - start)) s)" "$log"
    elif [ $((SECONDS - shown)) -ge 20 ]; then
      echo "  $((SECONDS - start)) s: $(last_line "$log" | cut -c1-100)"
      shown=$SECONDS
    fi
    sleep 0.2
  done
  local status=0
  wait $pid || status=$?
  [ -z "$tty" ] || printf '\r\033[K%s (%d s)\n' "$message" $((SECONDS - start))
  if [ $status != 0 ]; then
    tail -n 60 "$log" >&2
    echo "$message: failed with status $status: $*" >&2
  fi
  rm -f "$log"
  return $status
}

progress_line() {  # progress_line HEAD LOG: HEAD and the last line of LOG, cut to the terminal's width
  local width line
  width=$(tput cols 2>/dev/null || echo 80)
  line="$1: $(last_line "$2")"
  printf '\r\033[K%s' "${line:0:$((width - 1))}"
}

last_line() {  # of a log; pip ends its long silence while it copies files with a line about an old package
  tail -n 20 "$1" | { grep -v uninstall || true; } | tail -n 1 | tr -d '\r\033'
}
