"""Instance groups that come with fleeting."""
