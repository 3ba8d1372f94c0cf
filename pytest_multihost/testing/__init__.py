"""Fakes for tests of extensions, and the values of the model that such tests need.

This package imports neither pytest nor any runtime; no other module of `pytest_multihost` imports
it. `scripted` has a launcher whose ranks follow a script, `clock` has time without waiting, and
`values` makes values in a few words. Values of the model are imported from here: the modules that
define them may change. In a scripted world, each step happens some seconds after the start or after
a message:

    >>> from pathlib import Path
    >>> from pytest_multihost.core.launch import WireFrame
    >>> clock = ManualClock()
    >>> launcher = ScriptedLauncher(clock, [*well_behaved(0), *well_behaved(1, stays_in="call")])
    >>> world = launcher.start(make_spec(2), directory=Path("logs"), scratch=Path("scratch"))
    >>> [event.kind for event in world.wait(1.0) if event.rank == 1]
    ['forked', 'hello', 'ready']
    >>> world.send(1, WireFrame(Release("go")))
    >>> [event.kind for event in world.wait(1.0)], world.wait(1.0), clock.now()
    (['phase', 'report', 'phase'], [], 1.0)
"""

from pytest_multihost.core.model.acceptance import Acceptance as Acceptance
from pytest_multihost.core.model.child import Child as Child
from pytest_multihost.core.model.collectives import BY_METHOD as BY_METHOD
from pytest_multihost.core.model.collectives import C10D as C10D
from pytest_multihost.core.model.collectives import COLLECTIVES as COLLECTIVES
from pytest_multihost.core.model.collectives import MULTIHOST_UTILS as MULTIHOST_UTILS
from pytest_multihost.core.model.collectives import of_flight_name as of_flight_name
from pytest_multihost.core.model.collectives import of_function as of_function
from pytest_multihost.core.model.end import Ending as Ending
from pytest_multihost.core.model.errors import GarbledError as GarbledError
from pytest_multihost.core.model.errors import LaunchError as LaunchError
from pytest_multihost.core.model.errors import MultihostError as MultihostError
from pytest_multihost.core.model.errors import SettingError as SettingError
from pytest_multihost.core.model.errors import UnsoundForkError as UnsoundForkError
from pytest_multihost.core.model.event import BROKEN as BROKEN
from pytest_multihost.core.model.event import Done as Done
from pytest_multihost.core.model.event import Effect as Effect
from pytest_multihost.core.model.event import Event as Event
from pytest_multihost.core.model.event import ExchangeEntered as ExchangeEntered
from pytest_multihost.core.model.event import Exited as Exited
from pytest_multihost.core.model.event import FaultChanged as FaultChanged
from pytest_multihost.core.model.event import Gate as Gate
from pytest_multihost.core.model.event import Hold as Hold
from pytest_multihost.core.model.event import HoldEnded as HoldEnded
from pytest_multihost.core.model.event import Parked as Parked
from pytest_multihost.core.model.event import Pause as Pause
from pytest_multihost.core.model.event import PointSite as PointSite
from pytest_multihost.core.model.event import PointsRecorded as PointsRecorded
from pytest_multihost.core.model.event import RankEventBody as RankEventBody
from pytest_multihost.core.model.event import ReportMade as ReportMade
from pytest_multihost.core.model.event import SentToService as SentToService
from pytest_multihost.core.model.event import XfailMark as XfailMark
from pytest_multihost.core.model.event import now as now
from pytest_multihost.core.model.fault import IO_CALLS as IO_CALLS
from pytest_multihost.core.model.fault import START as START
from pytest_multihost.core.model.fault import UNHANDLED as UNHANDLED
from pytest_multihost.core.model.fault import ErrorPath as ErrorPath
from pytest_multihost.core.model.fault import Fault as Fault
from pytest_multihost.core.model.fault import FaultFacts as FaultFacts
from pytest_multihost.core.model.fault import Point as Point
from pytest_multihost.core.model.fault import hash_seed_of as hash_seed_of
from pytest_multihost.core.model.fault import resolve as resolve
from pytest_multihost.core.model.foreign_bytes import UnreadableError as UnreadableError
from pytest_multihost.core.model.history import CallSite as CallSite
from pytest_multihost.core.model.history import History as History
from pytest_multihost.core.model.history import Parting as Parting
from pytest_multihost.core.model.history import Side as Side
from pytest_multihost.core.model.json_values import JsonError as JsonError
from pytest_multihost.core.model.json_values import JsonObject as JsonObject
from pytest_multihost.core.model.json_values import from_json as from_json
from pytest_multihost.core.model.json_values import to_json as to_json
from pytest_multihost.core.model.memberships import find_memberships as find_memberships
from pytest_multihost.core.model.messages import CollectiveBroken as CollectiveBroken
from pytest_multihost.core.model.messages import CollectiveComplete as CollectiveComplete
from pytest_multihost.core.model.messages import DumpsWritten as DumpsWritten
from pytest_multihost.core.model.messages import EndWorld as EndWorld
from pytest_multihost.core.model.messages import FaultPerformed as FaultPerformed
from pytest_multihost.core.model.messages import FaultRequest as FaultRequest
from pytest_multihost.core.model.messages import FromPeer as FromPeer
from pytest_multihost.core.model.messages import FromServer as FromServer
from pytest_multihost.core.model.messages import PauseRank as PauseRank
from pytest_multihost.core.model.messages import PeerHello as PeerHello
from pytest_multihost.core.model.messages import Ping as Ping
from pytest_multihost.core.model.messages import Pong as Pong
from pytest_multihost.core.model.messages import ProbeRead as ProbeRead
from pytest_multihost.core.model.messages import Quit as Quit
from pytest_multihost.core.model.messages import RanksLost as RanksLost
from pytest_multihost.core.model.messages import ReadProbe as ReadProbe
from pytest_multihost.core.model.messages import Release as Release
from pytest_multihost.core.model.messages import RequestDumps as RequestDumps
from pytest_multihost.core.model.messages import SentByService as SentByService
from pytest_multihost.core.model.messages import Signalled as Signalled
from pytest_multihost.core.model.messages import ToPeer as ToPeer
from pytest_multihost.core.model.messages import ToRank as ToRank
from pytest_multihost.core.model.messages import ToServer as ToServer
from pytest_multihost.core.model.messages import Welcome as Welcome
from pytest_multihost.core.model.messages import WorldEnded as WorldEnded
from pytest_multihost.core.model.messages import WorldForked as WorldForked
from pytest_multihost.core.model.operation import CALLEE_SCOPE as CALLEE_SCOPE
from pytest_multihost.core.model.operation import FLIGHT_SCOPE as FLIGHT_SCOPE
from pytest_multihost.core.model.operation import HARNESS_SCOPE as HARNESS_SCOPE
from pytest_multihost.core.model.operation import JAX_SHUTDOWN as JAX_SHUTDOWN
from pytest_multihost.core.model.operation import KEY_WAITS as KEY_WAITS
from pytest_multihost.core.model.operation import PROGRAM_START as PROGRAM_START
from pytest_multihost.core.model.operation import REQUEST_SCOPE as REQUEST_SCOPE
from pytest_multihost.core.model.operation import RUNTIME_SCOPE as RUNTIME_SCOPE
from pytest_multihost.core.model.operation import SOCKET_SCOPE as SOCKET_SCOPE
from pytest_multihost.core.model.operation import GroupKey as GroupKey
from pytest_multihost.core.model.operation import Operation as Operation
from pytest_multihost.core.model.operation import Operations as Operations
from pytest_multihost.core.model.operation import Scope as Scope
from pytest_multihost.core.model.operation import Start as Start
from pytest_multihost.core.model.operation import nth as nth
from pytest_multihost.core.model.operation import program_scope as program_scope
from pytest_multihost.core.model.operation import tensor_size as tensor_size
from pytest_multihost.core.model.operation import tensor_text as tensor_text
from pytest_multihost.core.model.origin import Known as Known
from pytest_multihost.core.model.origin import Origin as Origin
from pytest_multihost.core.model.printable import printable as printable
from pytest_multihost.core.model.process import IN_TURNS as IN_TURNS
from pytest_multihost.core.model.process import NEVER as NEVER
from pytest_multihost.core.model.process import TICKS as TICKS
from pytest_multihost.core.model.process import Descriptor as Descriptor
from pytest_multihost.core.model.process import Endpoint as Endpoint
from pytest_multihost.core.model.process import KernelSnapshot as KernelSnapshot
from pytest_multihost.core.model.process import Process as Process
from pytest_multihost.core.model.process import Thread as Thread
from pytest_multihost.core.model.rank_names import PLAIN as PLAIN
from pytest_multihost.core.model.rank_names import Names as Names
from pytest_multihost.core.model.recorded_point import RecordedPoint as RecordedPoint
from pytest_multihost.core.model.replay import read_token as read_token
from pytest_multihost.core.model.replay import token as token
from pytest_multihost.core.model.result import Activity as Activity
from pytest_multihost.core.model.result import Label as Label
from pytest_multihost.core.model.result import RankSnapshot as RankSnapshot
from pytest_multihost.core.model.result import ServiceRecord as ServiceRecord
from pytest_multihost.core.model.result import WorldResult as WorldResult
from pytest_multihost.core.model.result import WorldSnapshot as WorldSnapshot
from pytest_multihost.core.model.role import place_roles as place_roles
from pytest_multihost.core.model.setting_values import MAX_RANKS as MAX_RANKS
from pytest_multihost.core.model.source import files_below as files_below
from pytest_multihost.core.model.spec import BackendFacts as BackendFacts
from pytest_multihost.core.model.spec import Host as Host
from pytest_multihost.core.model.spec import RankSpec as RankSpec
from pytest_multihost.core.model.spec import ServicePart as ServicePart
from pytest_multihost.core.model.spec import Subject as Subject
from pytest_multihost.core.model.spec import WorldSpec as WorldSpec
from pytest_multihost.core.model.stack import Dump as Dump
from pytest_multihost.core.model.stack import FailedThread as FailedThread
from pytest_multihost.core.model.stack import Frame as Frame
from pytest_multihost.core.model.stack import LockHolder as LockHolder
from pytest_multihost.core.model.stack import LockWait as LockWait
from pytest_multihost.core.model.stack import NativeThread as NativeThread
from pytest_multihost.core.model.stack import SourceContext as SourceContext
from pytest_multihost.core.model.stack import ThreadStack as ThreadStack
from pytest_multihost.core.model.stack import called_in_threads as called_in_threads
from pytest_multihost.core.model.stack import context_of as context_of
from pytest_multihost.core.model.stack import is_ours as is_ours
from pytest_multihost.core.model.verdict import Diagnosis as Diagnosis
from pytest_multihost.core.model.verdict import Divergence as Divergence
from pytest_multihost.core.model.verdict import DivergenceSide as DivergenceSide
from pytest_multihost.core.model.verdict import Evidence as Evidence
from pytest_multihost.core.model.verdict import JsonVerdict as JsonVerdict
from pytest_multihost.core.model.verdict import Kind as Kind
from pytest_multihost.core.model.verdict import OperationName as OperationName
from pytest_multihost.core.model.verdict import Phase as Phase
from pytest_multihost.core.model.verdict import Place as Place
from pytest_multihost.core.model.verdict import RankOutcome as RankOutcome
from pytest_multihost.core.model.verdict import RankPlace as RankPlace
from pytest_multihost.core.model.verdict import SentencePart as SentencePart
from pytest_multihost.core.model.verdict import WaitsFor as WaitsFor
from pytest_multihost.core.model.verdict import sentence as sentence
from pytest_multihost.core.outcome import Finding as Finding
from pytest_multihost.core.outcome import RankFacts as RankFacts
from pytest_multihost.core.outcome import Symptoms as Symptoms
from pytest_multihost.core.outcome import judge as judge
from pytest_multihost.testing.clock import ManualClock as ManualClock
from pytest_multihost.testing.scripted import ScriptedLauncher as ScriptedLauncher
from pytest_multihost.testing.scripted import Step as Step
from pytest_multihost.testing.scripted import Trigger as Trigger
from pytest_multihost.testing.scripted import well_behaved as well_behaved
from pytest_multihost.testing.values import Detail as Detail
from pytest_multihost.testing.values import exited as exited
from pytest_multihost.testing.values import make_dump as make_dump
from pytest_multihost.testing.values import make_event as make_event
from pytest_multihost.testing.values import make_spec as make_spec
from pytest_multihost.testing.values import raised as raised
from pytest_multihost.testing.values import report as report

Span = SentencePart
"""The earlier name of `SentencePart`."""
