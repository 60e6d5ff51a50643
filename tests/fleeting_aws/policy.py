"""The smallest IAM policy for what was asked of the cloud."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "packages/fleeting-aws/README.md"
GROUP = "my-group"

NEVER_ASKED_FOR = {"sts:AssumeRole"}
"""What only those need who assume a role, in the policy of whoever assumes it."""


def policy_for(calls: Iterable[str]) -> dict[str, Any]:
    """Permit these calls, named as IAM does, and nothing else.

    What describes has to be permitted for all resources, for IAM knows no others there, and what launches for all that
    a launch template may name; the rest is for one group, and for the instances that bear the tag which Auto Scaling
    puts on them.
    """
    asked = sorted({*calls} - NEVER_ASKED_FOR)
    anywhere = [each for each in asked if ":Describe" in each or each == "ec2:CreateFleet"]
    group = [each for each in asked if each.startswith("autoscaling:") and each not in anywhere]
    instances = [each for each in asked if each not in {*anywhere, *group}]
    tagged = {"StringEquals": {"aws:ResourceTag/aws:autoscaling:groupName": GROUP}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": anywhere, "Resource": "*"},
            {
                "Effect": "Allow",
                "Action": group,
                "Resource": f"arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/{GROUP}",
            },
            {"Effect": "Allow", "Action": instances, "Resource": "arn:aws:ec2:*:*:instance/*", "Condition": tagged},
        ],
    }


def in_words(policy: dict[str, Any]) -> str:
    """Write a policy as the README has it."""
    return f"```json\n{json.dumps(policy, indent=2)}\n```"


def permitted() -> set[str]:
    """The calls that the README's policy permits."""
    text = README.read_text()
    policy = json.loads(text[text.index("```json") + 7 :].partition("```")[0])
    return {action for statement in policy["Statement"] for action in statement["Action"]}
