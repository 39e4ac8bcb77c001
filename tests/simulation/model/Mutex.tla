-------------------------------- MODULE Mutex --------------------------------
(* The protocol of a mutex: clients and one server, the links between them, time, and what goes wrong.               *)
(*                                                                                                                   *)
(* bounds.py has the sizes: two or three acquisitions in all, by one to three sessions, with leases of one to three  *)
(* ticks, few faults, and few ticks during which anything is on its way. Within them TLC looks at every state. Ticks *)
(* are the same for all. A message takes any number of them. Requests and replies of one link stay in order (W10     *)
(* relies on it); the requests of a broken link, and notices, come in any order, late, never or twice.               *)
(*                                                                                                                   *)
(* Left out: drift and the margin for it, lifetimes of keys other than the holder's (a session's line is forgotten   *)
(* at any moment instead, a tombstone never), `try_acquire`, polling sessions (W11), a script's errors half-way (W9),*)
(* WAIT (W13), undoing that is given up. Tests on real servers and the simulation have those.                        *)
EXTENDS Client

CONSTANTS May,       \* what may happen besides asking, releasing and re-checking: see where it is used
          MaxFaults, \* how many faults there may be
          MaxDelays  \* during how many ticks, in all, something may be on its way

VARIABLES srv,     \* what the server knows: see Scripts
          wire,    \* session -> the calls over its link, in order
          stray,   \* requests of links that broke
          notices, \* grants on their way over channels
          confirm, \* sessions that have subscribed, and do not know so yet
          req,     \* token -> what its client knows: see Client
          crashed, \* sessions that are no more
          faults, delays, wiped

net == <<stray, notices, confirm>>
rest == <<crashed, faults, delays, wiped>>
vars == <<srv, wire, req, net, rest>>

Mine(s) == {t \in Tokens : Owner[t] = s}
Alive(t) == Owner[t] \notin crashed
InFlight(s, op) == {i \in 1..Len(wire[s]) : wire[s][i].op = op}
Outstanding(op, t) == \E i \in InFlight(Owner[t], op) : wire[Owner[t]][i].tok = t
Idle == stray = {} /\ notices = {} /\ confirm = {} /\ \A s \in Sessions : wire[s] = <<>>

-------------------------------------------------------------------------------
(* What the users and the clients' timers do.                                                                        *)
Do(t, step) ==
  /\ req' = [req EXCEPT ![t] = step.req]
  /\ wire' = [wire EXCEPT ![Owner[t]] = @ \o step.send]
  /\ UNCHANGED <<srv, net, rest>>

Alike(t, u) == \* nothing but their names tells them apart, so it is enough that they begin in one order
  Ttl[t] = Ttl[u] /\ (Owner[t] = Owner[u] \/ (Mine(Owner[t]) = {t} /\ Mine(Owner[u]) = {u}))

Ask(t) ==
  /\ req[t].phase = "new" /\ Alive(t)
  /\ \A u \in Tokens : u < t /\ Alike(t, u) => req[u].phase # "new" \/ ~Alive(u)
  /\ Do(t, Asking(t, req[t]))

AskAgain(t) == \* the link broke
  LET r == req[t] IN
  /\ r.phase = "asking" /\ Alive(t) /\ ~Outstanding("grant", t)
  /\ Do(t, IF r.turn.fence > 0 THEN Begin(t, r, r.turn.fence, r.turn.age, r.again) ELSE Asking(t, r))

Release(t) == \* before the deadline or after
  req[t].phase = "held" /\ Alive(t) /\ Do(t, Ending(t, req[t]))

Withdraw(t) == \* cancelled, or timed out
  "withdraw" \in May /\ req[t].phase \in {"asking", "waiting"} /\ Alive(t) /\ Do(t, Ending(t, req[t]))

UndoAgain(t) ==
  req[t].phase = "ending" /\ Alive(t) /\ ~Outstanding("release", t) /\ Do(t, Ending(t, req[t]))

Holds(t) == req[t].phase = "held" /\ req[t].left > 0

Renew(t) ==
  /\ "renew" \in May /\ Holds(t) /\ Alive(t) /\ ~Outstanding("renew", t)
  /\ \E ttl \in {Ttl[t]} \cup (IF "renew for longer" \in May THEN {Ttl[t] + 1} ELSE {}) :
       /\ req[t].left # ttl \* otherwise nothing could change
       /\ Do(t, Step(req[t], <<[Call("renew", Owner[t], t) EXCEPT !.ttl = ttl]>>))

Waiting(s) == {t \in Mine(s) : req[t].phase = "waiting"}
AskHowTheyStand(s) == wire' = [wire EXCEPT ![s] = Append(@, [Call("recheck", s, 0) EXCEPT !.toks = Waiting(s)])]

Recheck(s) == \* once per tick, as a tick is no less than the interval of re-checks
  /\ s \notin crashed /\ InFlight(s, "recheck") = {} /\ ~Broken("no re-check")
  /\ \E t \in Waiting(s) : req[t].since > 0
  /\ AskHowTheyStand(s)
  /\ UNCHANGED <<srv, req, net, rest>>

Subscribe(s) ==
  /\ s \notin crashed /\ srv.sub[s] # "here" /\ Waiting(s) # {}
  /\ srv' = [srv EXCEPT !.sub[s] = "here"]
  /\ confirm' = confirm \cup {s}
  /\ UNCHANGED <<wire, req, stray, notices, rest>>

Subscribed(s) == \* whoever was passed over before finds out by a re-check, after the one under way
  /\ s \in confirm /\ InFlight(s, "recheck") = {}
  /\ confirm' = confirm \ {s}
  /\ IF Waiting(s) = {} \/ Variant \in {"no re-check after subscribing", "no re-check"} THEN UNCHANGED wire
     ELSE AskHowTheyStand(s)
  /\ UNCHANGED <<srv, req, stray, notices, rest>>

AnotherName(s) == \* a re-check for another lock is answered at once: it must not count for this one
  /\ Broken("counted from another's re-check")
  /\ req' = [t \in Tokens |-> IF t \in Mine(s) /\ req[t].since > 0 THEN [req[t] EXCEPT !.since = 0] ELSE req[t]]
  /\ UNCHANGED <<srv, wire, net, rest>>

-------------------------------------------------------------------------------
(* Messages arrive.                                                                                                  *)
Serve(s) ==
  /\ \E i \in 1..Len(wire[s]) :
       /\ ~Ran(wire[s][i]) /\ \A j \in 1..(i - 1) : Ran(wire[s][j])
       /\ LET out == Run(srv, wire[s][i]) IN
          /\ srv' = out.srv
          /\ notices' = notices \cup out.told
          /\ wire' = [wire EXCEPT ![s][i].reply = out.reply]
  /\ UNCHANGED <<req, stray, confirm, rest>>

RECURSIVE InOrder(_, _)
InOrder(tokens, sends) ==
  IF tokens = {} THEN <<>>
  ELSE LET t == CHOOSE t \in tokens : \A u \in tokens : t <= u IN sends[t] \o InOrder(tokens \ {t}, sends)

Receive(s) ==
  /\ wire[s] # <<>> /\ Ran(wire[s][1])
  /\ LET steps == [t \in Mine(s) |-> Received(t, req[t], wire[s][1], Tail(wire[s]))] IN
     /\ req' = [t \in Tokens |-> IF t \in Mine(s) THEN steps[t].req ELSE req[t]]
     /\ wire' = [wire EXCEPT ![s] = Tail(@) \o InOrder(Mine(s), [t \in Mine(s) |-> steps[t].send])]
  /\ UNCHANGED <<srv, net, rest>>

ServeStray(left) == \* its reply has nowhere to go, nor the grant that it may carry
  \E c \in stray :
    LET out == Run(srv, c) IN
    /\ srv' = out.srv
    /\ notices' = notices \cup out.told
    /\ stray' = (stray \ {c}) \cup (IF left THEN {c} ELSE {})
    /\ UNCHANGED <<wire, req, confirm, crashed, delays, wiped>>

LoseStray == \E c \in stray : stray' = stray \ {c} /\ UNCHANGED <<srv, wire, req, notices, confirm, rest>>

Notice(left) ==
  \E n \in notices :
    LET s == Owner[n.tok]
        step == Told(n.tok, req[n.tok], n.fence, wire[s]) IN
    /\ notices' = (notices \ {n}) \cup (IF left THEN {n} ELSE {})
    /\ req' = IF s \in crashed THEN req ELSE [req EXCEPT ![n.tok] = step.req]
    /\ wire' = IF s \in crashed THEN wire ELSE [wire EXCEPT ![s] = @ \o step.send]
    /\ UNCHANGED <<srv, stray, confirm, crashed, delays, wiped>>

Move == \* what arrives sooner or later when nothing goes wrong
  \/ \E s \in Sessions : Serve(s) \/ Receive(s) \/ Subscribed(s)
  \/ ServeStray(FALSE) /\ faults' = faults
  \/ LoseStray
  \/ Notice(FALSE) /\ faults' = faults

Tick ==
  /\ (Idle /\ delays' = delays) \/ (~Idle /\ delays < MaxDelays /\ delays' = delays + 1)
  /\ srv' = CASE srv.ttl > 1 -> [srv EXCEPT !.ttl = @ - 1]
              [] srv.ttl = 1 -> [Free(srv) EXCEPT !.lapsed = TRUE]
              [] OTHER -> srv
  /\ wire' = [s \in Sessions |-> [i \in 1..Len(wire[s]) |-> [wire[s][i] EXCEPT !.age = Older(@)]]]
  /\ req' = [t \in Tokens |-> [req[t] EXCEPT
       !.since = Older(@), !.loose = Older(@), !.turn.age = IF req[t].turn.fence = 0 THEN 0 ELSE Older(@),
       !.left = IF @ = 0 \/ Broken("no local deadline") THEN @ ELSE @ - 1]]
  /\ UNCHANGED <<net, crashed, faults, wiped>>

-------------------------------------------------------------------------------
(* What goes wrong.                                                                                                  *)
CutOff(s) == \* what was sent may still arrive; no reply will
  /\ stray' = stray \cup {[c EXCEPT !.age = 0] : c \in {wire[s][i] : i \in {j \in 1..Len(wire[s]) : ~Ran(wire[s][j])}}}
  /\ wire' = [wire EXCEPT ![s] = <<>>]

Break(s) ==
  /\ wire[s] # <<>> /\ CutOff(s)
  /\ req' = [t \in Tokens |->
       LET ages == {wire[s][i].age : i \in {j \in InFlight(s, "grant") : wire[s][j].tok = t}}
           oldest == CHOOSE a \in ages : \A b \in ages : b <= a IN
       IF ages = {} \/ req[t].loose # Never THEN req[t]
       ELSE [req[t] EXCEPT !.loose = IF req[t].phase = "asking" THEN oldest ELSE Old]]
  /\ UNCHANGED <<srv, notices, confirm, crashed, wiped>>

Crash(s) == \* its subscription goes on, as with SIGSTOP or a forked child, until "unsubscribe"
  /\ s \notin crashed /\ \E t \in Mine(s) : req[t].phase \notin {"new", "done"}
  /\ crashed' = crashed \cup {s}
  /\ CutOff(s) /\ confirm' = confirm \ {s}
  /\ req' = [t \in Tokens |-> IF t \in Mine(s) THEN New ELSE req[t]]
  /\ UNCHANGED <<srv, notices, wiped>>

ServerOnly == UNCHANGED <<wire, req, net, crashed>>

Lost(s, place) == \* its subscription; the client has not noticed
  /\ srv.sub[s] = "here" /\ srv' = [srv EXCEPT !.sub[s] = place]
  /\ ServerOnly /\ UNCHANGED wiped

Forget(s) == \* it was silent for so long that its line is gone
  /\ Waiters(srv, s) # {} /\ srv' = [srv EXCEPT !.line = @ \ Waiters(srv, s)]
  /\ ServerOnly /\ UNCHANGED wiped

Wipe == \* FLUSHALL, or a failover to a server that has nothing
  /\ srv.issued # <<>>
  /\ srv' = [Empty EXCEPT !.issued = srv.issued, !.seats = srv.seats, !.sub = srv.sub] /\ wiped' = TRUE
  /\ ServerOnly

LoseNotice == \E n \in notices :
  notices' = notices \ {n} /\ UNCHANGED <<srv, wire, req, stray, confirm, crashed, wiped>>

Fault ==
  /\ faults < MaxFaults /\ faults' = faults + 1 /\ delays' = delays
  /\ \/ \E s \in Sessions : \/ "break" \in May /\ Break(s)
                            \/ "crash" \in May /\ Crash(s)
                            \/ "unsubscribe" \in May /\ Lost(s, "no")
                            \/ "subscribed elsewhere" \in May /\ Lost(s, "elsewhere")
                            \/ "forget" \in May /\ Forget(s)
     \/ "wipe" \in May /\ Wipe
     \/ "lose notice" \in May /\ LoseNotice
     \/ "duplicate" \in May /\ (ServeStray(TRUE) \/ Notice(TRUE))

-------------------------------------------------------------------------------
Init ==
  /\ srv = [Empty EXCEPT !.sub = [s \in Sessions |-> IF "subscribe" \in May THEN "no" ELSE "here"]]
  /\ wire = [s \in Sessions |-> <<>>] /\ stray = {} /\ notices = {} /\ confirm = {}
  /\ req = [t \in Tokens |-> New]
  /\ crashed = {} /\ faults = 0 /\ delays = 0 /\ wiped = FALSE

GoOn == \E t \in Tokens : AskAgain(t) \/ UndoAgain(t) \/ Release(t)

Next ==
  \/ \E t \in Tokens : Ask(t) \/ Withdraw(t) \/ Renew(t)
  \/ GoOn
  \/ \E s \in Sessions : Recheck(s) \/ Subscribe(s) \/ AnotherName(s)
  \/ Move
  \/ Tick
  \/ Fault

(* Faults are few, and once MaxDelays are spent messages arrive within their tick: P13's "once faults stop". The      *)
(* second line is WF_vars(Move), written out because TLC needs milliseconds for each ENABLED Move.                   *)
Arrival ==
  /\ faults' = faults /\ delays' = delays
  /\ \/ stray \ stray' # {} \/ notices \ notices' # {} \/ confirm \ confirm' # {}
     \/ \E s \in Sessions : \E i \in 1..Len(wire[s]) : i > Len(wire'[s]) \/ wire'[s][i] # wire[s][i]
Spec ==
  /\ Init /\ [][Next]_vars
  /\ []<>Idle \/ []<><<Arrival>>_vars
  /\ WF_vars(Tick) /\ WF_vars(GoOn) /\ \A s \in Sessions : WF_vars(Recheck(s))

-------------------------------------------------------------------------------
(* What must hold. Data loss ends leases (L5); then only the fencing tokens are promised.                            *)

(* P1, P2, P4: two do not hold it at once, each up to its own deadline.                                              *)
Mutex == wiped \/ \A t, u \in Tokens : Holds(t) /\ Holds(u) => t = u

(* P3, P6: what a holder believes the server knows too, and for as long.                                             *)
Backed == wiped \/ \A t \in Tokens : Holds(t) =>
            srv.tok = t /\ srv.number = req[t].fence /\ srv.ttl >= req[t].left

(* P5, P7: what was undone, and confirmed so, holds nothing and waits for nothing.                                   *)
NoOrphan == wiped \/ \A t \in Tokens : req[t].phase = "done" => srv.tok # t /\ t \notin srv.line

(* P8: fencing tokens increase with each grant, so no two are the same.                                              *)
Fences == \A i \in 1..(Len(srv.issued) - 1) : srv.issued[i] < srv.issued[i + 1]

(* P13: a released lock does not lie idle, not even until the next re-check, while somebody waits who can be told.   *)
Prompt == faults = 0 /\ delays = 0 /\ Idle /\ srv.tok = 0 /\ ~srv.lapsed =>
            \A t \in Tokens : req[t].phase = "waiting" => srv.sub[Owner[t]] # "here"

(* P13: a grant passes over nobody who stands in line, can be told and has an older ticket.                           *)
Fifo == [][Len(srv'.issued) > Len(srv.issued) =>
             \A u \in (srv.line \cap srv'.line) \ {srv'.tok} :
               Owner[u] \in srv.queue /\ srv.sub[Owner[u]] = "here" =>
                 \E i \in 1..(Seat(srv', u) - 1) : srv'.seats[i] = srv'.tok]_srv

(* P13: no waiter is forgotten for ever.                                                                             *)
Unserved(t) == req[t].phase \in {"asking", "waiting"}
NobodyForgotten == \A t \in Tokens : Unserved(t) ~> ~Unserved(t)
===============================================================================
