at=http://169.254.169.254/latest
token=$(curl -sf -m 1 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$at/api/token") || exit 0
ask() { curl -sf -m 1 -H "X-aws-ec2-metadata-token: $token" "$at/meta-data/$1"; }
seconds_until() {  # by hand: no portable command reads a date; days are counted as from the first of March
  IFS=-T:Z; set -- $1; unset IFS
  year=$1 month=${2#0}
  [ "$month" -gt 2 ] || { year=$((year - 1)) month=$((month + 12)); }
  days=$((365 * year + year / 4 - year / 100 + year / 400 + (153 * (month - 3) + 2) / 5 + ${3#0} - 719469))
  echo $((days * 86400 + ${4#0} * 3600 + ${5#0} * 60 + ${6#0} - $(date -u +%s)))
}
when=$(ask spot/instance-action | sed -n 's/.*"time" *: *"\([^"]*\)".*/\1/p')
if [ -n "$when" ]; then
  echo "preemption $(seconds_until "$when")"
elif [ "$(ask autoscaling/target-lifecycle-state)" = Terminated ]; then
  echo preemption 120
elif [ -n "$(ask events/recommendations/rebalance)" ]; then
  echo rebalance 3600
fi
exit 0
