from hone.front_door.grading import grade as grade
from hone.front_door.jobs import evaluate as evaluate
from hone.front_door.jobs import sft as sft
from hone.front_door.jobs import train as train
from hone.front_door.rollouts import open_rollouts as open_rollouts
from hone.front_door.rollouts import run as run
from hone.front_door.sandboxes import sandbox as sandbox
from hone.front_door.tables import read_run as read_run
from hone.front_door.tasks import load_tasks as load_tasks
from hone.utils.errors import HoneError as HoneError

__version__: str
